//! TLS: whom we trust, and who we are.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use lapin::tcp::{RustlsConnector, RustlsConnectorConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::{Secret, invalid};
use crate::error::{BoxError, Error, Result};

/// TLS, by rustls. The broker's certificate is always checked, against its name too; there is no switch to turn that
/// off.
///
/// The default trusts what the system trusts and presents no certificate. Files are read anew at each connect, so
/// that certificates which are renewed in place are taken up.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Tls {
    /// Certificate authorities to trust in addition to the system's. Default: none. A system without any, such as a
    /// bare container, is fine where this is set.
    pub ca: Option<Pem>,
    /// The certificate that we present, and its key. Default: none. The login stays by user and password.
    pub client: Option<ClientCertificate>,
    /// The name that the broker's certificate must carry, where it is not the host that is connected to. Default: the
    /// host.
    pub server_name: Option<String>,
}

/// A client certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ClientCertificate {
    /// The certificate, followed by those between it and the authority, if there are any.
    pub certificate: Pem,
    /// Its private key, not encrypted: PKCS#8, PKCS#1 or SEC1.
    pub key: Pem,
}

/// A PEM document: in place, or in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Pem {
    /// The text itself, from `-----BEGIN` on.
    Text(Secret),
    /// The path of the file that holds it.
    File(PathBuf),
}

impl Tls {
    /// Sets [`ca`](Self::ca).
    #[must_use]
    pub fn with_ca(mut self, ca: Pem) -> Self {
        self.ca = Some(ca);
        self
    }

    /// Sets [`client`](Self::client).
    #[must_use]
    pub fn with_client(mut self, certificate: Pem, key: Pem) -> Self {
        self.client = Some(ClientCertificate { certificate, key });
        self
    }

    /// Sets [`server_name`](Self::server_name).
    #[must_use]
    pub fn with_server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Reads the files, as each connect does, and says what is wrong with them: for a service that wants to know
    /// before it connects. Blocks for as long as that takes.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the field: a file that cannot be read, a document without a certificate or key, a certificate
    /// authority that is no certificate, a key that is not the certificate's.
    pub fn check(&self) -> Result<()> {
        self.load().map(drop)
    }

    /// What [`RabbitMqConfig::validate`](super::RabbitMqConfig::validate) says of this: no file is read.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.server_name.as_deref().is_some_and(|name| !can_be_certified(name)) {
            return Err(invalid("tls.server_name", "must be a DNS name or an IP address"));
        }
        if let Some(Pem::Text(ca)) = &self.ca {
            certificates("tls.ca", ca.expose().as_bytes())?;
        }
        let Some(client) = &self.client else { return Ok(()) };
        if let Pem::Text(text) = &client.certificate {
            certificates("tls.client.certificate", text.expose().as_bytes())?;
        }
        if let Pem::Text(text) = &client.key {
            private_key("tls.client.key", text.expose().as_bytes())?;
        }
        Ok(())
    }

    /// Reads what this names. To be called at each connect; blocks on the disk.
    ///
    /// Not by lapin's `OwnedTLSConfig`, which fails on a system that trusts no authority even where we bring our own,
    /// and which passes over an authority that does not parse: the handshake then fails without saying why.
    pub(in crate::rabbitmq) fn load(&self) -> Result<RustlsConnector> {
        let mut roots = Vec::new();
        if let Some(ca) = &self.ca {
            roots = certificates("tls.ca", &ca.read("tls.ca")?)?;
            // A connector that trusts only these is refused where rustls can make nothing of any of them.
            let own = RustlsConnectorConfig::default().with_parsable_certificates(roots.clone());
            own.connector_with_no_client_auth()
                .map_err(|error| unfit("tls.ca", "holds no certificate that can be trusted", error))?;
        }
        let system = match RustlsConnectorConfig::new_with_native_certs() {
            Ok(system) => system,
            Err(error) if roots.is_empty() => {
                let fix =
                    "this system trusts no certificate authority: install its certificates, or set this";
                return Err(unfit("tls.ca", fix, error));
            }
            Err(_) => RustlsConnectorConfig::default(),
        };
        let trust = system.with_parsable_certificates(roots);
        let Some(ClientCertificate { certificate, key }) = &self.client else {
            return trust
                .connector_with_no_client_auth()
                .map_err(|error| unfit("tls", "cannot be set up", error));
        };
        let chain = certificates("tls.client.certificate", &certificate.read("tls.client.certificate")?)?;
        let key = private_key("tls.client.key", &key.read("tls.client.key")?)?;
        trust
            .connector_with_single_cert(chain, key)
            .map_err(|error| unfit("tls.client", "certificate and key cannot be used together", error))
    }
}

impl Pem {
    /// A document that is given in place.
    pub fn text(text: impl Into<Secret>) -> Self {
        Self::Text(text.into())
    }

    /// A document in a file, which is read at each connect.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::File(path.into())
    }

    pub(crate) fn read(&self, field: &'static str) -> Result<Vec<u8>> {
        match self {
            Self::Text(text) => Ok(text.expose().as_bytes().to_vec()),
            Self::File(path) => fs::read(path).map_err(|error| {
                unfit(field, "the file cannot be read", error)
                    .with_context("file", path.display().to_string())
            }),
        }
    }
}

pub(crate) fn unfit(field: &'static str, fix: &str, error: impl Into<BoxError>) -> Error {
    invalid(field, fix).with_source(error)
}

/// Whether a certificate can be for this name.
pub(super) fn can_be_certified(name: &str) -> bool {
    ServerName::try_from(name).is_ok()
}

/// The certificates in a PEM document, of which there must be one. The reader's own errors quote lines of the
/// document, and are left out: it may be a key by mistake.
pub(crate) fn certificates(field: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => {
            Err(invalid(field, "holds no certificate; it must have a -----BEGIN CERTIFICATE----- section"))
        }
        Err(_) => Err(invalid(field, "is not PEM: a section has no end, or is not base64")),
    }
}

pub(crate) fn private_key(field: &'static str, pem: &[u8]) -> Result<PrivateKeyDer<'static>> {
    let fix = "holds no private key that can be used; it must be PEM, not encrypted: PKCS#8, PKCS#1 or SEC1";
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| invalid(field, fix))
}

impl<'de> Deserialize<'de> for Pem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // `deserialize_map` would leave the error for text to the format, which quotes it.
        deserializer.deserialize_any(PemVisitor)
    }
}

/// By hand, since the errors of a derived one would quote a key that was given without `text` around it.
struct PemVisitor;

const PEM: &str = "an object with either `text` or `file`";

impl<'de> Visitor<'de> for PemVisitor {
    type Value = Pem;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PEM)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pem, A::Error> {
        let pem = match map.next_key::<String>()?.as_deref() {
            Some("text") => Pem::Text(map.next_value()?),
            Some("file") => Pem::File(map.next_value()?),
            _ => return Err(A::Error::custom(format_args!("expected {PEM}"))),
        };
        match map.next_key::<String>()? {
            None => Ok(pem),
            Some(_) => Err(A::Error::custom(format_args!("expected {PEM}, and nothing else"))),
        }
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Pem, E> {
        Err(E::custom(format_args!("expected {PEM}, not text")))
    }
}
