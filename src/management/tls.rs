//! TLS, by the same fields as a connection over AMQP.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rustls::{ClientConfig, RootCertStore};

use super::config::invalid;
use crate::error::Result;
use crate::rabbitmq::config::tls::{certificates, private_key, unfit};
use crate::rabbitmq::config::{ClientCertificate, Tls};

/// What the client checks, and shows. Reads the files. Also for `http://`, where nothing uses it: without one, the
/// client would look for a provider that the program may not have installed.
pub(super) fn client_config(tls: Option<&Tls>, encrypted: bool) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit("tls", "cannot be set up", error))?;
    let roots = if encrypted { roots(tls)? } else { RootCertStore::empty() };
    let builder = builder.with_root_certificates(roots);
    let Some(ClientCertificate { certificate, key }) = tls.and_then(|tls| tls.client.as_ref()) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates("tls.client.certificate", &certificate.read("tls.client.certificate")?)?;
    let key = private_key("tls.client.key", &key.read("tls.client.key")?)?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| unfit("tls.client", "certificate and key cannot be used together", error))
}

/// The system's authorities and our own. A system without any is fine where we bring one.
fn roots(tls: Option<&Tls>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = tls.and_then(|tls| tls.ca.as_ref()) {
        let own = certificates("tls.ca", &ca.read("tls.ca")?)?;
        let (added, _) = roots.add_parsable_certificates(own);
        if added == 0 {
            return Err(invalid("tls.ca", "holds no certificate that can be trusted"));
        }
    }
    // What of the system's cannot be read is passed over, as every client does; none at all is refused below.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let fix = "this system trusts no certificate authority: install its certificates, or set this";
        return Err(invalid("tls.ca", fix));
    }
    Ok(roots)
}

/// The name that is asked for in place of the host, where the certificate carries another; `None` where it does not.
pub(super) fn server_name(tls: Option<&Tls>, host: &str) -> Result<Option<String>> {
    let Some(name) = tls.and_then(|tls| tls.server_name.as_deref()).filter(|name| *name != host) else {
        return Ok(None);
    };
    if name.parse::<IpAddr>().is_ok() {
        let fix = "must be a DNS name, unless it is the host: HTTP asks an address for itself alone";
        return Err(invalid("tls.server_name", fix));
    }
    Ok(Some(name.to_owned()))
}

/// Looks up one host, whatever it is asked for: the URL carries the certificate's name in the host's place.
#[derive(Debug)]
pub(super) struct Instead {
    pub(super) host: String,
}

impl Resolve for Instead {
    fn resolve(&self, _: Name) -> Resolving {
        let host = self.host.clone();
        Box::pin(async move {
            // An IPv6 address stands in brackets in a URL. The port is that of the URL.
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let found: Vec<_> = tokio::net::lookup_host((host, 0)).await?.collect();
            if found.is_empty() {
                return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address").into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
