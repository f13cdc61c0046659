//! `dlq list`, `peek` and `purge`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::time::SystemTime;

use serde::Serialize;
use windlass::clock::{Clock, SystemClock};
use windlass::rabbitmq::dead_letters::Peeked;

use crate::args::{ListArgs, PeekArgs, PurgeArgs};
use crate::config::Config;
use crate::connect::Broker;
use crate::exit::{Exit, Failure, Outcome};
use crate::letter::Letter;
use crate::output;

/// What the name of a dead-letter queue ends with.
const SUFFIX: &str = ".dlq";

#[derive(Serialize)]
struct List {
    vhost: String,
    queues: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    queue: String,
    messages: u64,
    /// When the oldest died; null where that is not written on it, and where there is none.
    oldest: Option<String>,
    oldest_age_seconds: Option<u64>,
    #[serde(skip)]
    age: Option<String>,
}

/// The queues by the management API, as AMQP lists none; the counts by AMQP, as those of the API are seconds old.
pub(crate) async fn list(config: Config, args: &ListArgs, json: bool) -> Outcome {
    let broker = Broker::open(config).await?;
    let listed = of_all(&broker, args.all).await;
    let vhost = broker.vhost.clone();
    broker.close().await;
    let list = List { vhost, queues: listed? };
    if json {
        output::json(&list)?;
    } else if list.queues.is_empty() {
        output::lines("no dead letters")?;
    } else {
        let rows = list.queues.iter().map(|listed| {
            let oldest = listed.age.as_ref().map(|age| format!("{age} ago"));
            let oldest = oldest.unwrap_or_else(|| if listed.messages == 0 { "-" } else { "?" }.to_owned());
            [listed.queue.clone(), listed.messages.to_string(), oldest]
        });
        output::lines(output::table(["queue", "messages", "oldest"], rows, 1))?;
    }
    Ok(Exit::Done)
}

async fn of_all(broker: &Broker, empty_too: bool) -> Outcome<Vec<Listed>> {
    let now = SystemClock.wall();
    let mut names: Vec<String> =
        broker.management.queues(&broker.vhost).await?.into_iter().map(|queue| queue.name).collect();
    names.retain(|name| name.ends_with(SUFFIX));
    names.sort();
    let mut listed = Vec::new();
    for queue in names {
        let letters = broker.letters(&queue).await;
        let messages = letters.count().await?;
        if messages == 0 && !empty_too {
            continue;
        }
        let oldest = if messages == 0 { None } else { oldest(&letters.peek(NonZeroUsize::MIN).await?) };
        listed.push(Listed {
            queue,
            messages,
            oldest: oldest.map(output::time),
            oldest_age_seconds: oldest.map(|at| now.duration_since(at).unwrap_or_default().as_secs()),
            age: oldest.map(|at| output::age(at, now)),
        });
    }
    Ok(listed)
}

fn oldest(peeked: &Peeked) -> Option<SystemTime> {
    peeked.messages.first().and_then(|dead| dead.death.at)
}

#[derive(Serialize)]
struct Shown<'a> {
    queue: &'a str,
    /// How many there are.
    ready: u64,
    messages: Vec<Letter>,
    warnings: Vec<String>,
}

pub(crate) async fn peek(config: Config, args: &PeekArgs, json: bool) -> Outcome {
    let broker = Broker::open(config).await?;
    let peeked = broker.letters(&args.queue).await.peek(args.limit).await;
    broker.close().await;
    let peeked = peeked?;
    let now = SystemClock.wall();
    let shown = Shown {
        queue: &args.queue,
        ready: peeked.ready,
        messages: peeked.messages.iter().map(|dead| Letter::of(dead, now, args.body_bytes)).collect(),
        warnings: peeked.warnings.iter().map(ToString::to_string).collect(),
    };
    if json {
        output::json(&shown)?;
        return Ok(Exit::Done);
    }
    for letter in &shown.messages {
        output::lines(letter)?;
    }
    let (count, queue) = (shown.messages.len(), output::plain(&args.queue));
    output::lines(format_args!("{count} of {} in {queue}; all of them are still there", shown.ready))?;
    for warning in &shown.warnings {
        output::lines(format_args!("warning: {}", output::plain(warning)))?;
    }
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Purged<'a> {
    queue: &'a str,
    deleted: u64,
}

pub(crate) async fn purge(config: Config, args: &PurgeArgs, json: bool) -> Outcome {
    if !args.yes && !io::stdin().is_terminal() {
        let text =
            "standard input is no terminal to ask at: give --yes to delete the messages without a question";
        return Err(Failure::invalid(text));
    }
    let broker = Broker::open(config).await?;
    let letters = broker.letters(&args.queue).await;
    let deleted = async {
        if !args.yes && !confirmed(&args.queue, letters.count().await?).await? {
            return Ok(None);
        }
        letters.purge().await.map(Some).map_err(Failure::from)
    };
    let deleted = deleted.await;
    broker.close().await;
    let Some(deleted) = deleted? else {
        return Err(Failure {
            exit: Exit::NotConfirmed,
            kind: "not_confirmed",
            text: "nothing was deleted".to_owned(),
        });
    };
    let purged = Purged { queue: &args.queue, deleted };
    if json {
        output::json(&purged)?;
    } else {
        output::lines(format_args!("{deleted} deleted from {}", output::plain(&args.queue)))?;
    }
    Ok(Exit::Done)
}

/// Asks on standard error: standard output may be for a program. Whoever takes the answer blocks a thread of its own.
async fn confirmed(queue: &str, count: u64) -> Outcome<bool> {
    let question = format!(
        "This deletes {count} messages in {} for good. Type the queue's name to go on: ",
        output::plain(queue)
    );
    let answer = tokio::task::spawn_blocking(move || {
        let mut err = io::stderr().lock();
        write!(err, "{question}")?;
        err.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok::<_, io::Error>(answer)
    });
    let answer = answer.await.map_err(io::Error::other)??;
    Ok(answer.trim_end_matches(['\r', '\n']) == queue)
}
