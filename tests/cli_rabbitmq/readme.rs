//! The commands in README.md, run in their order, print what it shows.

use std::collections::VecDeque;

use windlass::message::Message;
use windlass::source::Cause;

use crate::desk::{Desk, Ran, path_of};
use crate::rabbit::until;

/// A command that the README shows, and what it shows of its output.
struct Shown {
    arguments: Vec<String>,
    output: String,
}

fn shown(readme: &str) -> VecDeque<Shown> {
    let blocks = readme.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let commands = blocks.flat_map(|block| block.split("$ windlass ").skip(1));
    let commands = commands.map(|command| {
        let (line, output) = command.split_once('\n').expect("a line for the command");
        Shown { arguments: line.split_whitespace().map(str::to_owned).collect(), output: output.to_owned() }
    });
    commands.collect()
}

/// Without what differs from run to run: times, ages, the version of the broker, and the widths that follow from them.
fn plain(text: &str) -> String {
    let words = |line: &str| {
        let mut plain: Vec<&str> = Vec::new();
        for word in line.split_whitespace() {
            let digits = word.bytes().filter(u8::is_ascii_digit).count();
            let is_time = word.ends_with('Z') && digits == 14;
            let unit = word.trim_start_matches(|char: char| char.is_ascii_digit());
            let is_age = digits > 0 && ["s", "m", "h", "day", "days"].contains(&unit);
            if is_time {
                plain.push("TIME");
            } else if is_age {
                if plain.last() != Some(&"AGE") {
                    plain.push("AGE");
                }
            } else if word.ends_with(',') && line.starts_with("RabbitMQ ") && plain.len() == 1 {
                plain.push("VERSION,");
            } else {
                plain.push(word);
            }
        }
        plain.join(" ")
    };
    text.trim_end().lines().map(words).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn the_readme_shows_what_the_commands_print() {
    let readme = std::fs::read_to_string(path_of("README.md")).expect("there is a README");
    let topology = std::fs::read_to_string(path_of("examples/chat.toml")).expect("it is beside the examples");
    assert!(readme.contains(topology.trim()), "the README shows examples/chat.toml as it is");
    let mut desk = Desk::without_vhost("readme").await;
    desk.vhost = "chat".to_owned();
    desk.write("chat.toml", &topology);
    let mut all = shown(&readme);
    assert!(all.len() >= 9, "each command is shown");
    let (mut dead, mut first) = (false, true);
    while let Some(Shown { arguments, output }) = all.pop_front() {
        if arguments[0] == "status" && !dead {
            dead = true;
            give_up(&desk).await;
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        // The broker's figures lag: what is told there is asked for until it is so.
        let ran = if arguments[0] == "status" {
            until("the status is as it is shown", || async {
                let ran = run(&desk, &arguments).await;
                (plain(&ran.out) == plain(&output)).then_some(ran)
            })
            .await
        } else {
            run(&desk, &arguments).await
        };
        assert_eq!(plain(&ran.out), plain(&output), "windlass {arguments:?}: {ran:?}");
        // The first plan has something to change.
        let code = if std::mem::take(&mut first) { 3 } else { 0 };
        assert_eq!(ran.code, Some(code), "windlass {arguments:?}: {ran:?}");
    }
}

async fn run(desk: &Desk, arguments: &[&str]) -> Ran {
    let mut command = desk.windlass(arguments);
    command.env("WINDLASS_RUNTIME_PASSWORD", "s3cret");
    crate::desk::finished(&mut command).await
}

/// What the README's workers could not do.
async fn give_up(desk: &Desk) {
    let management = desk.node.management();
    for user in ["op", "guest"] {
        management.put_permissions(&desk.vhost, user, [".*"; 3]).await;
    }
    let line = |id: &str, body: &'static str, attempt| {
        Message::new(body).with_id(id).with_content_type("application/json").with_attempt(attempt)
    };
    let messages = vec![
        (
            line("line-17", r#"{"room": 7, "text": 12}"#, 1),
            Cause::new("validation:input").with_detail("not the expected JSON at text: invalid type"),
        ),
        (
            line("line-18", r#"{"room": 7, "text": "hello"}"#, 4),
            Cause::new("retry_exhausted:4").with_detail("handler_error: the archive does not answer"),
        ),
        (
            line("line-21", r#"{"room": 9, "text": "anybody there?"}"#, 4),
            Cause::new("retry_exhausted:4").with_detail("handler_error: the archive does not answer"),
        ),
    ];
    desk.give_up("writer", messages).await;
}
