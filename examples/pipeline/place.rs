//! What must be on the broker before anything runs, and how it gets there.

use windlass::bootstrap::Bootstrapper;
use windlass::broker::Broker;
use windlass::clock::{SystemClock, within};
use windlass::management::{Management, ManagementConfig};
use windlass::rabbitmq::RabbitMqConfig;
use windlass::topology::{self, Broadcast, Topology};
use windlass::{Error, ErrorKind, Result};

use super::stages::WAIT;
use super::{ALL, SINK, Settings, TRANSPORT};

/// How long RabbitMQ may take to be there.
const TO_CONNECT: std::time::Duration = std::time::Duration::from_secs(30);

/// The stages that the settings name, the sink, the slots of the transport nodes, and the exchange.
pub(crate) fn topology(settings: &Settings) -> Topology {
    let stage = |name: &str| topology::Stage::new(name).with_wait_steps([WAIT]);
    let sink = SINK;
    let stages = settings.stages.iter().map(|each| each.name()).chain([sink.name()]);
    stages.fold(
        Topology::default()
            .with_broadcast(Broadcast::new(ALL.name()))
            .with_stage(topology::Stage::per_slot(TRANSPORT.pattern()).with_dead_letters(true)),
        |topology, name| topology.with_stage(stage(name)),
    )
}

/// Makes it, and opens the broker.
pub(crate) async fn prepare(settings: &Settings) -> Result<Broker> {
    let topology = topology(settings);
    if !settings.broker.starts_with("memory:") {
        let config = RabbitMqConfig::from_uri(&settings.broker)?;
        let management = Management::new(management(settings, &config)?)?;
        let bootstrapper = Bootstrapper::new(management, topology.clone().with_vhost(config.vhost));
        bootstrapper
            .apply()
            .await
            .map_err(|error| Error::new(ErrorKind::Other, "bootstrap").with_source(error))?;
    }
    let opened = within(&SystemClock, TO_CONNECT, Broker::open(&settings.broker)).await;
    let broker = opened.unwrap_or_else(|| Err(Error::new(ErrorKind::Timeout, "open broker")))?;
    if let Some(memory) = broker.as_memory() {
        memory.apply(&topology)?;
    }
    Ok(broker)
}

/// As the settings say; else where the plugin listens by default, with the login of the broker.
fn management(settings: &Settings, config: &RabbitMqConfig) -> Result<ManagementConfig> {
    if let Some(url) = &settings.management {
        return ManagementConfig::from_url(url);
    }
    let host = config.hosts.first().map_or("localhost", |host| host.name.as_str());
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let (scheme, port) = if config.tls.is_some() { ("https", 15671) } else { ("http", 15672) };
    let mut management = ManagementConfig::from_url(&format!("{scheme}://{host}:{port}"))?
        .with_user(config.user.as_str())
        .with_password(config.password.clone());
    management.tls = config.tls.clone();
    Ok(management)
}
