//! A process beside the tests that owns the server of a node and ends it when the tests are gone.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Reads one word a line. Its standard input is a pipe whose other end only the process of the tests has, so that it
/// ends when that process does, whatever ended it.
///
/// The server gets a session of its own: a signal to its process group does not reach the supervisor, and Ctrl-C in a
/// terminal reaches neither. `PIPE` is caught, because an answer to tests that are gone must not end the supervisor
/// before the server.
const SCRIPT: &str = r#"
folder=$1
shift
pid=
end() {
    [ -n "$pid" ] || return 0
    kill -s KILL -- "-$pid" "$pid"
    wait "$pid"
    pid=
}
leave() {
    end
    # What was killed may still be at its last write.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        rm -rf "$folder" && break
        sleep 0.1
    done
}
trap : PIPE
trap exit HUP INT TERM
trap leave EXIT
while read -r word; do
    case $word in
    START)
        setsid "$@" </dev/null >>"$folder/log/startup" 2>&1 &
        pid=$!
        echo "$pid"
        ;;
    KILL)
        end
        echo done
        ;;
    *)
        kill -s "$word" -- "-$pid"
        echo done
        ;;
    esac
done
"#;

/// The supervisor of one node. Dropping it kills the server and removes the folder of the node.
#[derive(Debug)]
pub(crate) struct Supervisor {
    process: Child,
    // `None` only while it is dropped.
    words: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Supervisor {
    /// Starts the supervisor; the server is started by [`start`](Self::start). The command's environment is the
    /// server's. Its `folder` must hold a folder `log`.
    pub(crate) fn new(folder: &Path, server: &Path, environment: impl FnOnce(&mut Command)) -> Self {
        let log = File::create(folder.join("log/supervisor")).expect("the folder of the node can be written");
        let mut command = Command::new("sh");
        command.arg("-c").arg(SCRIPT).arg("sh").arg(folder).arg(server).current_dir("/");
        environment(&mut command);
        let mut process = command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("sh can be started");
        let words = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().expect("it is piped"));
        Self { process, words, answers }
    }

    /// Starts the server and says its process id, which is that of its group, too.
    pub(crate) fn start(&mut self) -> u32 {
        self.ask("START").parse().expect("it answers with a process id")
    }

    /// Kills the whole group of the server, stopped or not.
    pub(crate) fn kill(&mut self) {
        self.ask("KILL");
    }

    /// Stops the whole group of the server.
    pub(crate) fn stop(&mut self) {
        self.ask("STOP");
    }

    pub(crate) fn cont(&mut self) {
        self.ask("CONT");
    }

    fn ask(&mut self, word: &str) -> String {
        let words = self.words.as_mut().expect("it is there until it is dropped");
        writeln!(words, "{word}").expect("the supervisor lives");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the supervisor answers");
        assert!(!answer.is_empty(), "the supervisor ended at {word}");
        answer.trim_end().to_owned()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.words.take());
        let _ = self.process.wait();
    }
}
