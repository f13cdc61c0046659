//! How a node is set up.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use super::certificates::Identity;
use super::ports::Ports;

/// A TLS listener beside the plain one.
#[derive(Debug, Clone)]
pub(crate) struct Tls {
    /// The certificate of the authority that clients' certificates are checked against, in PEM.
    pub(crate) authority: String,
    /// What the node shows.
    pub(crate) server: Identity,
    /// Whether a client must have a certificate.
    pub(crate) demand_certificate: bool,
}

/// How a node is set up, beyond what all have. Settings that tests wait for are quick: figures are a second old.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    lines: Vec<String>,
    tls: Option<Tls>,
    epmd_port: Option<u16>,
}

impl Options {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A line for `rabbitmq.conf`, such as `consumer_timeout = 2000`. The last one of a key counts.
    pub(crate) fn config(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    pub(crate) fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// An epmd on another port than the one that all nodes of the machine share. The node starts it where there is
    /// none; it outlives the node.
    pub(crate) fn epmd_port(mut self, port: u16) -> Self {
        self.epmd_port = Some(port);
        self
    }

    pub(crate) fn epmd(&self) -> Option<u16> {
        self.epmd_port
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Writes all files that the server reads into the folder of the node.
    pub(crate) fn write(&self, folder: &Path, ports: &Ports) -> io::Result<()> {
        fs::create_dir_all(folder.join("log"))?;
        fs::write(folder.join("enabled_plugins"), "[rabbitmq_management].\n")?;
        // How old the figures of a quorum queue may be; 5 s else. There is no line for it in the other file.
        let advanced = "[{rabbit, [{quorum_tick_interval, 1000}]}].\n";
        fs::write(folder.join("advanced.config"), advanced)?;
        // It stands in for the machine's own file of variables.
        fs::write(folder.join("rabbitmq-env.conf"), "")?;
        if let Some(tls) = &self.tls {
            fs::write(folder.join("ca.pem"), &tls.authority)?;
            fs::write(folder.join("server.pem"), &tls.server.certificate)?;
            fs::write(folder.join("server.key"), &tls.server.key)?;
        }
        fs::write(folder.join("rabbitmq.conf"), self.text(folder, ports))
    }

    fn text(&self, folder: &Path, ports: &Ports) -> String {
        let mut text = format!(
            "listeners.tcp.1 = 127.0.0.1:{}\n\
             management.tcp.ip = 127.0.0.1\n\
             management.tcp.port = {}\n\
             management.rates_mode = basic\n\
             collect_statistics_interval = 1000\n\
             management.sample_retention_policies.global.minute = 1\n\
             management.sample_retention_policies.basic.minute = 1\n\
             management.sample_retention_policies.detailed.10 = 1\n\
             loopback_users = none\n\
             vm_memory_high_watermark.absolute = 2GB\n\
             disk_free_limit.absolute = 1MB\n\
             log.file.level = info\n",
            ports.amqp, ports.management
        );
        if let Some(tls) = &self.tls {
            let folder = folder.display();
            let verify = if tls.demand_certificate { "verify_peer" } else { "verify_none" };
            write!(
                text,
                "listeners.ssl.1 = 127.0.0.1:{}\n\
                 ssl_options.cacertfile = {folder}/ca.pem\n\
                 ssl_options.certfile = {folder}/server.pem\n\
                 ssl_options.keyfile = {folder}/server.key\n\
                 ssl_options.verify = {verify}\n\
                 ssl_options.fail_if_no_peer_cert = {}\n",
                ports.amqps, tls.demand_certificate
            )
            .expect("a string can be written to");
        }
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}
