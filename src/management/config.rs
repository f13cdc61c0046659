//! How to reach the management API, and log in.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use reqwest::Url;

use crate::error::{Error, ErrorKind, Result};
use crate::rabbitmq::config::env::{Vars, of_process, password, said_of, set, set_tls};
use crate::rabbitmq::config::{Secret, Tls};

/// Every variable, without its prefix.
const KNOWN: &[&str] = &[
    "URL",
    "USER",
    "PASSWORD",
    "PASSWORD_FILE",
    "TLS_CA_FILE",
    "TLS_CERT_FILE",
    "TLS_KEY_FILE",
    "TLS_SERVER_NAME",
    "TIMEOUT_MS",
];

const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(5 * 60);

/// How to reach the management API of RabbitMQ, and log in.
///
/// `Debug` shows neither user nor password, nor does any error.
///
/// ```
/// use windlass::management::ManagementConfig;
///
/// let config = ManagementConfig::from_url("https://admin:s3cret@rabbit-1:15671/broker")?;
/// assert_eq!(config.url, "https://rabbit-1:15671/broker");
/// assert_eq!(config.user, "admin");
/// # Ok::<(), windlass::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagementConfig {
    /// `http://` or `https://`, host, port, and the path before `/api` where there is one; without a user. Default:
    /// `http://localhost:15672`.
    pub url: String,
    /// The user to log in as, on the broker one with the tag `administrator` for what the bootstrapper does, or
    /// `monitoring` for looking only. Default: guest, who can log in only from the broker's own machine.
    pub user: String,
    /// The user's password. Default: that of the user guest on a new broker.
    pub password: Secret,
    /// TLS, for `https://`. Default: what the system trusts.
    pub tls: Option<Tls>,
    /// How long one request may take, connecting and the whole answer included: from 1 ms to 5 min. Default: 10 s.
    pub timeout: Duration,
}

/// guest at localhost: a broker on the developer's own machine, as it comes.
impl Default for ManagementConfig {
    fn default() -> Self {
        Self {
            url: "http://localhost:15672".to_owned(),
            user: "guest".to_owned(),
            password: Secret::from("guest"),
            tls: None,
            timeout: Duration::from_secs(10),
        }
    }
}

impl ManagementConfig {
    /// Reads a URL, with a user and a password or without: `https://user:password@host:15671/prefix`.
    ///
    /// User and password are percent-decoded; in them `%`, `/`, `?`, `#` and `@` must be encoded, and `:` in the
    /// password need not be. A path that ends in `/api` is taken without it.
    ///
    /// # Errors
    ///
    /// `Invalid`, with what is wrong; never with a part of the URL.
    pub fn from_url(url: &str) -> Result<Self> {
        let mut config = Self::default();
        let (scheme, rest) = split_scheme(url)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let mut host = authority;
        if let Some((login, behind)) = authority.rsplit_once('@') {
            host = behind;
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            config.user = decoded("the user", user)?;
            if login.contains(':') {
                config.password = Secret::from(decoded("the password", password)?);
            }
        }
        let path = path.trim_end_matches('/');
        let path = path.strip_suffix("/api").unwrap_or(path);
        config.url = format!("{scheme}://{host}{path}");
        parsed(&config.url)?;
        Ok(config)
    }

    /// Reads the environment variables of this process whose names start with `prefix` and `_`.
    ///
    /// | variable | sets |
    /// |---|---|
    /// | `…_URL` | all that [a URL](Self::from_url) holds; the others override it |
    /// | `…_USER` | [`user`](Self::user), as it is: not encoded |
    /// | `…_PASSWORD`, or `…_PASSWORD_FILE` | [`password`](Self::password), as it is; or a file that holds it, less the last line end |
    /// | `…_TLS_CA_FILE`, `…_TLS_CERT_FILE`, `…_TLS_KEY_FILE`, `…_TLS_SERVER_NAME` | the fields of [`Tls`] |
    /// | `…_TIMEOUT_MS` | [`timeout`](Self::timeout), a whole number |
    ///
    /// Any other name with the prefix is refused, since a typo would otherwise be a default; so take a prefix that
    /// nothing else has. A variable that is set but empty is refused too.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the variable and the fix, never with a value.
    pub fn from_env(prefix: &str) -> Result<Self> {
        Self::from_vars(prefix, of_process(prefix)?)
    }

    /// As [`from_env`](Self::from_env), from variables that are given by name and value. Those without the prefix are
    /// passed over.
    ///
    /// # Errors
    ///
    /// As for [`from_env`](Self::from_env).
    pub fn from_vars(prefix: &str, vars: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut vars = Vars::new(prefix, KNOWN, vars)?;
        let mut config = match vars.take("URL") {
            Some(url) => Self::from_url(&url).map_err(|error| vars.wrong("URL", said_of("url", &error)))?,
            None => Self::default(),
        };
        set(&mut config.user, vars.take("USER"));
        set(&mut config.password, password(&mut vars)?);
        set_tls(&mut config.tls, &mut vars)?;
        set(&mut config.timeout, vars.number("TIMEOUT_MS")?.map(Duration::from_millis));
        Ok(config)
    }

    /// Sets [`url`](Self::url).
    #[must_use]
    pub fn with_url(mut self, url: impl Into<String>) -> Self {
        self.url = url.into();
        self
    }

    /// Sets [`user`](Self::user).
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    /// Sets [`password`](Self::password).
    #[must_use]
    pub fn with_password(mut self, password: impl Into<Secret>) -> Self {
        self.password = password.into();
        self
    }

    /// Sets [`tls`](Self::tls).
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets [`timeout`](Self::timeout).
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether this can be right. Reads no file and asks no name server.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the field and the fix: a URL that is none, or that holds a user; a user that is empty or has a
    /// `:` in it; TLS without `https://`; a time-out out of its range; PEM text without a certificate or key.
    pub fn validate(&self) -> Result<()> {
        self.checked().map(drop)
    }

    /// The URL, without a slash at its end.
    pub(super) fn checked(&self) -> Result<Url> {
        let url = parsed(&self.url)?;
        if self.user.is_empty() {
            return Err(invalid("user", "is empty; name the user to log in as"));
        }
        // The login is sent as user, colon, password (RFC 7617).
        if self.user.contains(':') {
            return Err(invalid("user", "holds a `:`, which a login over HTTP cannot carry"));
        }
        if let Some(tls) = &self.tls {
            if url.scheme() != "https" {
                return Err(invalid("tls", "is set, but `url` is not https://; change one of them"));
            }
            tls.validate()?;
        }
        if !TIMEOUT.contains(&self.timeout) {
            let (low, high) = (TIMEOUT.start(), TIMEOUT.end());
            return Err(invalid(
                "timeout",
                format!("must be from {low:?} to {high:?}, not {:?}", self.timeout),
            ));
        }
        Ok(url)
    }
}

/// What stands where it should not may be a piece of a password with a raw `/`, `?`, `#` or `@` in it, and so is not
/// quoted.
fn parsed(text: &str) -> Result<Url> {
    split_scheme(text)?;
    if text.contains('@') {
        let fix = "holds an `@`: user and password have fields of their own; in a URL that is read, `/`, `?`, `#` \
                   and `@` in them must be percent-encoded";
        return Err(invalid("url", fix));
    }
    let url = Url::parse(text).map_err(|_| invalid("url", "is no URL; write http://host:15672"))?;
    if !url.has_host() {
        return Err(invalid("url", "names no host; write http://host:15672"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(invalid("url", "has a `?` or a `#`; write http://host:15672"));
    }
    Ok(url)
}

fn split_scheme(url: &str) -> Result<(&str, &str)> {
    match url.split_once("://") {
        Some((scheme, rest)) if matches!(scheme, "http" | "https") => Ok((scheme, rest)),
        _ => Err(invalid("url", "must begin with http:// or https://")),
    }
}

fn decoded(what: &str, text: &str) -> Result<String> {
    let wrong = || invalid("url", format!("{what} is not UTF-8 once it is percent-decoded"));
    Ok(percent_decode_str(text).decode_utf8().map_err(|_| wrong())?.into_owned())
}

pub(super) fn invalid(field: &str, fix: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, "configure the management API").with_message(format!("{field}: {fix}"))
}

/// Without user and password, and without a URL that was given with them, since no setter looks at it.
impl fmt::Debug for ManagementConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = if self.url.contains('@') { "[hidden]" } else { &self.url };
        f.debug_struct("ManagementConfig")
            .field("url", &url)
            .field("user", &format_args!("[hidden]"))
            .field("password", &self.password)
            .field("tls", &self.tls)
            .field("timeout", &self.timeout)
            .finish()
    }
}
