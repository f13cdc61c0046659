//! How the broker keeps passwords: four bytes of salt, and the hash of salt and password, in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256, Sha512};

use crate::rabbitmq::Secret;

const SALT: usize = 4;

/// Whether `hash` is that of `password`; `None` where it is made by an algorithm that is not known here.
///
/// How long the comparison takes says nothing to anybody: both sides of it are the caller's.
pub(super) fn matches(hash: &str, algorithm: Option<&str>, password: &Secret) -> Option<bool> {
    // Of a user that logs in without a password, by a certificate.
    if hash.is_empty() {
        return Some(false);
    }
    let bytes = STANDARD.decode(hash).ok()?;
    let (salt, kept) = bytes.split_at_checked(SALT)?;
    let password = password.expose().as_bytes();
    match algorithm? {
        "rabbit_password_hashing_sha256" => Some(hashed::<Sha256>(salt, password) == kept),
        "rabbit_password_hashing_sha512" => Some(hashed::<Sha512>(salt, password) == kept),
        _ => None,
    }
}

fn hashed<D: Digest>(salt: &[u8], password: &[u8]) -> Vec<u8> {
    D::new().chain_update(salt).chain_update(password).finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::matches;
    use crate::rabbitmq::Secret;

    /// Made by RabbitMQ 4.0 of the password `pw`.
    const HASH: &str = "hVfI4yftRUNl44veasI3xz0V5X96YgXykItaxxKFbMiFzZ56";

    #[test]
    fn a_hash_of_the_brokers_is_told_apart() {
        let is = |hash, algorithm, password: &str| matches(hash, algorithm, &Secret::from(password));
        let sha256 = Some("rabbit_password_hashing_sha256");
        assert_eq!(is(HASH, sha256, "pw"), Some(true));
        assert_eq!(is(HASH, sha256, "pw "), Some(false));
        assert_eq!(is(HASH, Some("rabbit_password_hashing_md5"), "pw"), None);
        assert_eq!(is(HASH, None, "pw"), None);
        assert_eq!(is("", sha256, ""), Some(false));
        for garbage in ["AAA", "!", "AAAA"] {
            assert_ne!(is(garbage, sha256, "pw"), Some(true));
        }
    }
}
