//! Certificates for tests of TLS.

use std::fmt;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// A certificate and its key, in PEM; the key as PKCS#8.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// A new authority that nobody trusts until they are told to.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, key()).expect("an authority can be made"))
    }

    /// Its own certificate, in PEM.
    pub(crate) fn certificate(&self) -> String {
        self.0.pem()
    }

    /// What a server shows that is reached under these names or addresses.
    pub(crate) fn server(&self, names: &[&str]) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).expect("names of hosts");
        self.sign(params, "server", ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// What a client shows.
    pub(crate) fn client(&self, name: &str) -> Identity {
        self.sign(CertificateParams::default(), name, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, mut params: CertificateParams, name: &str, usage: ExtendedKeyUsagePurpose) -> Identity {
        let key = key();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.0).expect("an authority can sign");
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key can be made")
}
