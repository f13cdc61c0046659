//! A private RabbitMQ node.

use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use windlass::clock::{Clock, SystemClock, within};

use super::management::Management;
use super::options::Options;
use super::ports::Ports;
use super::processes::{Process, processes_of_group};
use super::supervisor::Supervisor;
use super::{BOUND, commands, until, until_at_most};

/// Starting takes 4 to 9 s on a machine that has nothing else to do.
const START_BOUND: Duration = Duration::from_secs(60);

/// Not the system's own folder for such files: the commands may run in a folder of their own, which shares `/tmp`.
const PLACE: &str = "/tmp";

/// The major and the minor version: `Series(4, 0)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Series(pub(crate) u16, pub(crate) u16);

impl Series {
    fn of(version: &str) -> Option<Self> {
        let mut parts = version.split('.').map(str::parse);
        Some(Self(parts.next()?.ok()?, parts.next()?.ok()?))
    }
}

/// Figures of a queue as the queue itself has them now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueCounts {
    pub(crate) ready: u64,
    pub(crate) unacked: u64,
    pub(crate) consumers: u64,
}

/// A RabbitMQ node of this process: own name, ports, folder and data, on the loopback interface only.
///
/// It ends, and its folder goes, when it is dropped or when the process of the tests ends in whatever way. Two things
/// it leaves alone: brokers that run already, and epmd, which all Erlang nodes of a machine share and which it starts
/// where there is none.
#[derive(Debug)]
pub(crate) struct Node {
    // First, because it removes the folder.
    run: Mutex<Run>,
    at: Place,
    series: Series,
    started_in: Duration,
}

#[derive(Debug)]
struct Run {
    supervisor: Supervisor,
    /// The process group of the server; `None` while it is killed.
    group: Option<u32>,
}

/// What stays the same over restarts.
#[derive(Debug)]
struct Place {
    name: String,
    folder: PathBuf,
    commands: PathBuf,
    ports: Ports,
    options: Options,
}

static SHARED: OnceCell<Result<Node, String>> = OnceCell::const_new();
static COUNT: AtomicU32 = AtomicU32::new(1);

impl Node {
    /// The node that all tests of this process share: none may kill it, stop it or change its settings.
    ///
    /// # Panics
    ///
    /// Where there is no RabbitMQ, with how to get one; where it does not start, with the end of its log.
    pub(crate) async fn shared() -> &'static Self {
        match SHARED.get_or_init(|| Self::try_start(Options::new())).await {
            Ok(node) => node,
            Err(reason) => panic!("{reason}"),
        }
    }

    /// A node of the test's own.
    ///
    /// # Panics
    ///
    /// As [`shared`](Self::shared).
    pub(crate) async fn start(options: Options) -> Self {
        Self::try_start(options).await.unwrap_or_else(|reason| panic!("{reason}"))
    }

    async fn try_start(options: Options) -> Result<Self, String> {
        let commands = commands::folder()?;
        let mut attempts = 3;
        loop {
            attempts -= 1;
            match Self::start_once(options.clone(), &commands).await {
                // Somebody else took a port in between.
                Err(reason) if reason.contains("eaddrinuse") && attempts > 0 => {}
                done => return done,
            }
        }
    }

    async fn start_once(options: Options, commands: &Path) -> Result<Self, String> {
        let began = SystemClock.now();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("windlass-rabbit-{}-{number}", process::id());
        let folder = Path::new(PLACE).join(&name);
        let ports = Ports::claim()?;
        let unusable = |error| format!("{} cannot be used: {error}", folder.display());
        // It will hold the secret that the node and its commands share. A folder that is there already is not ours.
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(unusable)?;
        options.write(&folder, &ports).map_err(unusable)?;
        let at = Place {
            name: format!("{name}@localhost"),
            folder,
            commands: commands.to_owned(),
            ports,
            options,
        };
        let server = commands.join("rabbitmq-server");
        let mut supervisor = Supervisor::new(&at.folder, &server, |command| at.environment(command));
        let group = supervisor.start();
        let run = Mutex::new(Run { supervisor, group: Some(group) });
        let mut node = Self { run, at, series: Series(0, 0), started_in: Duration::ZERO };
        node.series = node.ready(group).await?;
        node.started_in = SystemClock.now() - began;
        Ok(node)
    }

    /// Waits until it serves both AMQP and the management API.
    async fn ready(&self, group: u32) -> Result<Series, String> {
        let failed = |what: &str| format!("the RabbitMQ node {what}\n{}", self.log_tail());
        let answer = until_at_most(START_BOUND, || async {
            if Process::alive(group).is_none() {
                return Some(Err(failed("ended while it started")));
            }
            if !speaks_amqp(self.at.ports.amqp).await {
                return None;
            }
            // The last of the listeners.
            let amqps = (Ipv4Addr::LOCALHOST, self.at.ports.amqps);
            if self.at.options.has_tls() && TcpStream::connect(amqps).await.is_err() {
                return None;
            }
            let overview = self.management().try_get("/api/overview").await?;
            let version = overview["rabbitmq_version"].as_str()?;
            Some(Series::of(version).ok_or_else(|| failed(&format!("has the version {version:?}"))))
        });
        answer.await.unwrap_or_else(|| Err(failed(&format!("did not start within {START_BOUND:?}"))))
    }

    /// What it runs, for tests in which the series differ.
    pub(crate) fn series(&self) -> Series {
        self.series
    }

    /// How long the start took.
    pub(crate) fn started_in(&self) -> Duration {
        self.started_in
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.at.folder
    }

    pub(crate) fn amqp_port(&self) -> u16 {
        self.at.ports.amqp
    }

    /// Where it listens for TLS.
    ///
    /// # Panics
    ///
    /// Where no TLS was asked for.
    pub(crate) fn amqps_port(&self) -> u16 {
        assert!(self.at.options.has_tls(), "the node was started without Options::tls");
        self.at.ports.amqps
    }

    /// The user `guest`, who may do all, and the virtual host `/`.
    pub(crate) fn uri(&self) -> String {
        self.uri_at(self.at.ports.amqp)
    }

    /// As [`uri`](Self::uri), by way of another port, such as that of a proxy.
    pub(crate) fn uri_at(&self, port: u16) -> String {
        format!("amqp://guest:guest@127.0.0.1:{port}/%2f")
    }

    /// The management API, as `guest`.
    pub(crate) fn management(&self) -> Management {
        Management::new(self.at.ports.management, "guest", "guest")
    }

    /// The process group of the server; `None` while it is killed.
    pub(crate) fn process_group(&self) -> Option<u32> {
        self.run.lock().unwrap().group
    }

    /// Kills the node as a crash would; it may be stopped at the time. What the broker has on disk stays; see
    /// [`flush`](Self::flush).
    pub(crate) async fn kill(&self) {
        let killed = {
            let mut run = self.run.lock().unwrap();
            run.supervisor.kill();
            run.group.take()
        };
        if let Some(group) = killed {
            until("the node is dead", || async { processes_of_group(group).is_empty().then_some(()) }).await;
        }
    }

    /// Kills the node, unless that was done, and starts it on the same data and ports.
    ///
    /// # Panics
    ///
    /// Where it does not start, with the end of its log.
    pub(crate) async fn restart(&self) {
        self.kill().await;
        let group = {
            let mut run = self.run.lock().unwrap();
            let group = run.supervisor.start();
            run.group = Some(group);
            group
        };
        if let Err(reason) = self.ready(group).await {
            panic!("{reason}");
        }
    }

    /// Stops all of the node, as a machine that hangs would: connections stay open, and nothing answers.
    pub(crate) async fn stop_the_world(&self) {
        let group = {
            let mut run = self.run.lock().unwrap();
            run.supervisor.stop();
            run.group.expect("the node is not killed")
        };
        let stopped = || processes_of_group(group).iter().all(|process| process.state == 'T');
        until("the node has stopped", || async { stopped().then_some(()) }).await;
    }

    /// Lets a stopped node go on.
    pub(crate) fn cont(&self) {
        self.run.lock().unwrap().supervisor.cont();
    }

    /// Runs `rabbitmqctl` against the node and returns what it printed. It takes about a second.
    ///
    /// # Panics
    ///
    /// When it fails, with what it said.
    pub(crate) async fn ctl(&self, arguments: &[&str]) -> String {
        self.try_ctl(arguments).await.unwrap_or_else(|reason| panic!("{reason}"))
    }

    /// As [`ctl`](Self::ctl); the error is what it said.
    pub(crate) async fn try_ctl(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(self.at.commands.join("rabbitmqctl"));
        command.arg("-q").arg("-n").arg(&self.at.name).args(arguments);
        self.at.environment(&mut command);
        let mut command = tokio::process::Command::from(command);
        command.kill_on_drop(true).stdin(Stdio::null());
        let described = || format!("rabbitmqctl {}", arguments.join(" "));
        let output = within(&SystemClock, BOUND, command.output())
            .await
            .ok_or_else(|| format!("{}: not within {BOUND:?}", described()))?
            .map_err(|error| format!("{}: {error}", described()))?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(printed);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{}: {}\n{printed}{said}", described(), output.status))
    }

    /// As [`ctl`](Self::ctl), for its `list_…` commands: one object for each thing.
    pub(crate) async fn ctl_list(&self, arguments: &[&str]) -> Vec<Value> {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--formatter", "json"]);
        let printed = self.ctl(&arguments).await;
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error} in {printed}"))
    }

    /// Figures that do not lag, unlike those of the management API and of `list_queues`, which are up to five seconds
    /// old for a quorum queue; `None` where there is no such queue. `/` is the usual virtual host.
    /// A quorum queue counts who got a message and has not settled it as a consumer.
    pub(crate) async fn queue_counts(&self, vhost: &str, queue: &str) -> Option<QueueCounts> {
        let asked = format!(
            "case rabbit_amqqueue:lookup(rabbit_misc:r(<<\"{vhost}\">>, queue, <<\"{queue}\">>)) of
               {{ok, Q}} -> case amqqueue:get_type(Q) of
                 rabbit_quorum_queue ->
                   Ask = fun(S) -> rabbit_fifo:overview(S) end,
                   {{ok, {{_, All}}, _}} = ra:local_query(amqqueue:get_pid(Q), Ask),
                   {{maps:get(num_ready_messages, All), maps:get(num_checked_out, All), maps:get(num_consumers, All)}};
                 _ ->
                   Asked = [messages_ready, messages_unacknowledged, consumers],
                   list_to_tuple([N || {{_, N}} <- rabbit_amqqueue:info(Q, Asked)])
                 end;
               _ -> none
             end."
        );
        let answer = self.ctl(&["eval", &asked]).await;
        if answer.trim() == "none" {
            return None;
        }
        let digits = answer.trim().trim_start_matches('{').trim_end_matches('}');
        let counts: Vec<u64> = digits.split(',').filter_map(|count| count.trim().parse().ok()).collect();
        let [ready, unacked, consumers] = counts[..] else { panic!("counts of {queue}: {answer}") };
        Some(QueueCounts { ready, unacked, consumers })
    }

    /// Has the broker write its register of quorum queues to disk.
    ///
    /// The broker itself does so later. A quorum queue that was declared shortly before a [`kill`](Self::kill) has no
    /// leader after the restart, looks empty, and its confirmed messages are gone: no fault of a client. So a test
    /// declares, flushes, and kills then; the queues that an adapter declares on first use are no exception.
    pub(crate) async fn flush(&self) {
        self.ctl(&["eval", "[ok = dets:sync(Table) || Table <- dets:all()]."]).await;
    }

    /// Raises or ends the memory alarm, which blocks all connections that publish. Returns once it is in force.
    pub(crate) async fn memory_alarm(&self, on: bool) {
        let watermark = if on { ["absolute", "1"] } else { ["absolute", "2GB"] };
        self.ctl(&[&["set_vm_memory_high_watermark"], &watermark[..]].concat()).await;
        let alarms = "rabbit_alarm:get_alarms().";
        until("the alarm is as asked for", || async {
            (self.ctl(&["eval", alarms]).await.contains("memory") == on).then_some(())
        })
        .await;
    }

    /// The end of what the node wrote.
    pub(crate) fn log_tail(&self) -> String {
        let mut tail = String::new();
        for file in ["log/supervisor", "log/startup", "log/node.log"] {
            let bytes = fs::read(self.at.folder.join(file)).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(40)..];
            tail = tail + "-- " + file + "\n" + &last.join("\n") + "\n";
        }
        tail
    }
}

impl Place {
    /// The variables of the server and of the commands: everything they read or write lies in the folder.
    fn environment(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RABBITMQ_") {
                command.env_remove(name);
            }
        }
        // Set by a service manager, it would be told that the server is up.
        command.env_remove("NOTIFY_SOCKET");
        let mut set = |name: &str, value: &OsStr| {
            command.env(name, value);
        };
        // Erlang keeps its cookie there. A wrapper that sets HOME itself may take it from the other one.
        set("HOME", self.folder.as_os_str());
        set("BROKER_HOME", self.folder.as_os_str());
        set("LANG", "C.UTF-8".as_ref());
        set("ERL_EPMD_ADDRESS", "127.0.0.1".as_ref());
        if let Some(port) = self.options.epmd() {
            set("ERL_EPMD_PORT", port.to_string().as_ref());
        }
        set("RABBITMQ_NODENAME", self.name.as_ref());
        set("RABBITMQ_DIST_PORT", self.ports.distribution.to_string().as_ref());
        // Else several commands at once run out of ports.
        set("RABBITMQ_CTL_DIST_PORT_MIN", "32100".as_ref());
        set("RABBITMQ_CTL_DIST_PORT_MAX", "32700".as_ref());
        let loopback = OsStr::new("-kernel inet_dist_use_interface {127,0,0,1}");
        set("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", loopback);
        set("RABBITMQ_CTL_ERL_ARGS", loopback);
        for (name, file) in [
            ("RABBITMQ_CONF_ENV_FILE", "rabbitmq-env.conf"),
            ("RABBITMQ_CONFIG_FILE", "rabbitmq.conf"),
            ("RABBITMQ_CONFIG_FILES", "conf.d"),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", "advanced.config"),
            ("RABBITMQ_GENERATED_CONFIG_DIR", "generated"),
            ("RABBITMQ_SCHEMA_DIR", "schema"),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", "enabled_plugins"),
            ("RABBITMQ_MNESIA_BASE", "data"),
            ("RABBITMQ_LOG_BASE", "log"),
            ("RABBITMQ_LOGS", "log/node.log"),
            ("RABBITMQ_PID_FILE", "pid"),
            ("ERL_CRASH_DUMP", "erl_crash.dump"),
        ] {
            set(name, self.folder.join(file).as_os_str());
        }
    }
}

/// Whether a broker answers there as one that is ready for clients.
async fn speaks_amqp(port: u16) -> bool {
    let greeted = within(&SystemClock, Duration::from_secs(2), async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
        let mut frame = [0; 11];
        stream.read_exact(&mut frame).await?;
        // A method frame on channel 0, with `connection.start`.
        std::io::Result::Ok(frame[..3] == [1, 0, 0] && frame[7..] == [0, 10, 0, 10])
    });
    matches!(greeted.await, Some(Ok(true)))
}
