//! What a connect does with the files.

use std::fs;
use std::path::PathBuf;

use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use windlass::error::Chain;
use windlass::rabbitmq::config::{Pem, Tls};

use crate::assert_refused;

/// An authority, and a client with a certificate of it; all PEM.
pub(crate) struct Certificates {
    pub(crate) ca: String,
    pub(crate) client: String,
    pub(crate) client_key: String,
}

impl Certificates {
    pub(crate) fn make() -> Self {
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let client = CertificateParams::new(["client.example".to_owned()]).unwrap();
        let client = client.signed_by(&key, &authority).unwrap();
        Self { ca: authority.pem(), client: client.pem(), client_key: key.serialize_pem() }
    }
}

/// A folder with the certificates in it; gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn make(name: &str) -> Self {
        let folder = Self(std::env::temp_dir().join(format!("windlass-{name}-{}", std::process::id())));
        fs::create_dir_all(&folder.0).unwrap();
        let made = Certificates::make();
        let other = KeyPair::generate().unwrap().serialize_pem();
        // As `openssl pkcs8 -topk8` heads one; what is in it is never looked at.
        let encrypted = made.client_key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        for (file, text) in [
            ("ca.pem", made.ca),
            ("client.pem", made.client),
            ("client.key", made.client_key),
            ("other.key", other),
            ("encrypted.key", encrypted),
        ] {
            fs::write(folder.0.join(file), text).unwrap();
        }
        folder
    }

    fn file(&self, name: &str) -> Pem {
        Pem::file(self.0.join(name))
    }

    fn text(&self, name: &str) -> Pem {
        Pem::text(fs::read_to_string(self.0.join(name)).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn files_and_text_are_both_taken() {
    let at = Folder::make("tls-both");
    for tls in [
        Tls::default().with_ca(at.file("ca.pem")),
        Tls::default().with_ca(at.text("ca.pem")).with_client(at.file("client.pem"), at.text("client.key")),
        Tls::default().with_ca(at.file("ca.pem")).with_client(at.text("client.pem"), at.file("client.key")),
    ] {
        tls.check().unwrap_or_else(|error| panic!("{}", Chain(&error)));
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_field() {
    let at = Folder::make("tls-wrong");
    let file = |name| at.file(name);
    let ca = || Tls::default().with_ca(file("ca.pem"));
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let refused = [
        (Tls::default().with_ca(file("none.pem")), "tls.ca: the file cannot be read"),
        (Tls::default().with_ca(file("none.pem")), "none.pem"),
        (Tls::default().with_ca(file(".")), "tls.ca: the file cannot be read"),
        (Tls::default().with_ca(file("client.key")), "tls.ca: holds no certificate"),
        (Tls::default().with_ca(Pem::text(garbage)), "tls.ca: holds no certificate that can be trusted"),
        (
            ca().with_client(file("none.pem"), file("client.key")),
            "tls.client.certificate: the file cannot be read",
        ),
        (ca().with_client(file("client.pem"), file("none.key")), "tls.client.key: the file cannot be read"),
        (ca().with_client(file("client.pem"), file("ca.pem")), "tls.client.key: holds no private key"),
        (ca().with_client(file("client.pem"), file("encrypted.key")), "not encrypted"),
        (
            ca().with_client(file("client.pem"), file("other.key")),
            "tls.client: certificate and key cannot be used",
        ),
    ];
    for (tls, expected) in refused {
        assert_refused(tls.check(), expected);
    }
}

#[test]
fn files_are_read_anew_each_time() {
    let at = Folder::make("tls-anew");
    let tls =
        Tls::default().with_ca(at.file("ca.pem")).with_client(at.file("client.pem"), at.file("now.key"));
    fs::copy(at.0.join("other.key"), at.0.join("now.key")).unwrap();
    assert_refused(tls.check(), "tls.client: certificate and key cannot be used");
    fs::copy(at.0.join("client.key"), at.0.join("now.key")).unwrap();
    tls.check().unwrap();
}
