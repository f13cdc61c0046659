//! `status`: the queues of the virtual host.

use serde::Serialize;
use windlass::management::{Management, QueueStatus};

use crate::config::Config;
use crate::exit::{Exit, Outcome};
use crate::output;

#[derive(Serialize)]
struct Status {
    version: Option<String>,
    cluster: Option<String>,
    vhost: String,
    queues: Vec<Queue>,
}

/// What is not told is null: unknown is not zero.
#[derive(Serialize)]
struct Queue {
    name: String,
    kind: Option<String>,
    state: Option<String>,
    ready: Option<u64>,
    unacked: Option<u64>,
    consumers: Option<u64>,
}

impl From<QueueStatus> for Queue {
    fn from(queue: QueueStatus) -> Self {
        let QueueStatus { name, kind, state, ready, unacked, consumers, .. } = queue;
        Self { name, kind, state, ready, unacked, consumers }
    }
}

pub(crate) async fn status(config: Config, json: bool) -> Outcome {
    let management = Management::new(config.management)?;
    let vhost = config.amqp.vhost;
    let overview = management.overview().await?;
    let mut queues: Vec<Queue> = management.queues(&vhost).await?.into_iter().map(Queue::from).collect();
    queues.sort_by(|one, other| one.name.cmp(&other.name));
    let status = Status { version: overview.version, cluster: overview.cluster, vhost, queues };
    if json {
        output::json(&status)?;
    } else {
        output::lines(for_people(&status))?;
    }
    Ok(Exit::Done)
}

fn for_people(status: &Status) -> String {
    let version = status.version.as_deref().unwrap_or("of an unknown version");
    let head = format!("RabbitMQ {}, virtual host {}", output::plain(version), output::plain(&status.vhost));
    if status.queues.is_empty() {
        return format!("{head}: no queues");
    }
    let rows = status.queues.iter().map(|queue| {
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".to_owned());
        [
            queue.name.clone(),
            text(&queue.kind),
            text(&queue.state),
            output::known(queue.ready),
            output::known(queue.unacked),
            output::known(queue.consumers),
        ]
    });
    let header = ["queue", "type", "state", "ready", "unacked", "consumers"];
    format!("{head}\n\n{}", output::table(header, rows, 3))
}
