//! `dlq list`, `peek` and `purge`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::num::NonZeroUsize;

use serde::Serialize;
use windlass::clock::{Clock, SystemClock};
use windlass::management::QueueStatus;
use windlass::rabbitmq::dead_letters::Warning;

use crate::args::{DeliveryLimit, ListArgs, PeekArgs, PurgeArgs};
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

/// What is not known is null.
#[derive(Serialize)]
struct Listed {
    queue: String,
    messages: Option<u64>,
    /// Those that somebody else looks at or sends back just now, as far as the broker's figures go.
    unacked: Option<u64>,
    /// When the oldest died.
    oldest: Option<String>,
    oldest_age_seconds: Option<u64>,
    warnings: Vec<String>,
    /// Why the queue could not be looked at.
    error: Option<String>,
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
    } else {
        output::lines(for_people(&list))?;
    }
    let failed = list.queues.iter().any(|listed| listed.error.is_some());
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

fn for_people(list: &List) -> String {
    if list.queues.is_empty() {
        return "no dead letters".to_owned();
    }
    let rows = list.queues.iter().map(|listed| {
        let oldest = listed.age.as_ref().map(|age| format!("{age} ago"));
        let oldest = oldest.unwrap_or_else(|| if listed.messages == Some(0) { "-" } else { "?" }.to_owned());
        [listed.queue.clone(), output::known(listed.messages), output::known(listed.unacked), oldest]
    });
    let mut lines = vec![output::table(["queue", "messages", "unacked", "oldest"], rows, 1)];
    for Listed { queue, warnings, error, .. } in &list.queues {
        let warnings = warnings.iter().map(|warning| ("warning", warning));
        for (what, text) in warnings.chain(error.iter().map(|error| ("error", error))) {
            lines.push(format!("{what}: {}: {}", output::plain(queue), output::plain(text)));
        }
    }
    lines.join("\n")
}

async fn of_all(broker: &Broker, empty_too: bool) -> Outcome<Vec<Listed>> {
    let mut queues = broker.management.queues(&broker.vhost).await?;
    queues.retain(|queue| queue.name.ends_with(SUFFIX));
    queues.sort_by(|one, other| one.name.cmp(&other.name));
    let mut all = Vec::new();
    for QueueStatus { name, unacked, .. } in queues {
        let mut listed = Listed {
            queue: name,
            messages: None,
            unacked,
            oldest: None,
            oldest_age_seconds: None,
            warnings: Vec::new(),
            error: None,
            age: None,
        };
        // One that cannot be looked at does not hide the others.
        if let Err(failure) = listed.look(broker).await {
            listed.error = Some(failure.text);
        }
        let is_empty = listed.messages == Some(0) && listed.unacked.is_none_or(|unacked| unacked == 0);
        if empty_too || !is_empty {
            all.push(listed);
        }
    }
    Ok(all)
}

impl Listed {
    async fn look(&mut self, broker: &Broker) -> Outcome<()> {
        let letters = broker.rabbit.dead_letters(&self.queue);
        let messages = letters.count().await?;
        self.messages = Some(messages);
        if messages == 0 {
            return Ok(());
        }
        let letters = broker.letters(&self.queue, &DeliveryLimit { delivery_limit: None }).await?;
        let peeked = letters.peek(NonZeroUsize::MIN).await?;
        self.warnings.extend(peeked.warnings.iter().map(ToString::to_string));
        let now = SystemClock.wall();
        let oldest = peeked.messages.first().and_then(|dead| dead.death.at);
        self.oldest = oldest.map(output::time);
        self.oldest_age_seconds = oldest.map(|at| now.duration_since(at).unwrap_or_default().as_secs());
        self.age = oldest.map(|at| output::age(at, now));
        Ok(())
    }
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
    let peeked = match broker.letters(&args.queue, &args.limit_of_queue).await {
        Ok(letters) => letters.peek(args.limit).await.map_err(Failure::from),
        Err(failure) => Err(failure),
    };
    broker.close().await;
    let peeked = peeked?;
    let lost = peeked.warnings.iter().any(|warning| matches!(warning, Warning::OverDeliveryLimit { .. }));
    let exit = if lost { Exit::Failed } else { Exit::Done };
    let now = SystemClock.wall();
    let shown = Shown {
        queue: &args.queue,
        ready: peeked.ready,
        messages: peeked.messages.iter().map(|dead| Letter::of(dead, now, args.body_bytes)).collect(),
        warnings: peeked.warnings.iter().map(ToString::to_string).collect(),
    };
    if json {
        output::json(&shown)?;
        return Ok(exit);
    }
    for letter in &shown.messages {
        output::lines(letter)?;
    }
    let (count, queue) = (shown.messages.len(), output::plain(&args.queue));
    let kept = if lost { "not all of them may be there still" } else { "all of them are still there" };
    output::lines(format_args!("{count} of {} in {queue}; {kept}", shown.ready))?;
    for warning in &shown.warnings {
        output::lines(format_args!("warning: {}", output::plain(warning)))?;
    }
    Ok(exit)
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
    if !args.any_queue && !args.queue.ends_with(SUFFIX) {
        let text = format!(
            "{} does not end in {SUFFIX}, and what waits there may be work: give --any-queue to delete it all the same",
            output::plain(&args.queue)
        );
        return Err(Failure::invalid(text));
    }
    let broker = Broker::open(config).await?;
    let letters = broker.rabbit.dead_letters(&args.queue);
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
