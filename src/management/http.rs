//! One request and its answer: bounded in time and size, and each failure named.

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, StatusCode, Url};
use serde_json::Value;

use super::config::{ManagementConfig, invalid};
use super::tls::{Instead, client_config, server_name};
use crate::clock::{Clock, within};
use crate::error::{Error, ErrorKind, Result};

/// What an answer may have at most. A page of queues has some hundred kilobytes.
const LARGEST_ANSWER: usize = 16 * 1024 * 1024;

/// For how long a connection that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(20);

/// What of the broker's reason an error repeats, in letters.
const LONGEST_REASON: usize = 500;

/// Everything but the letters that RFC 3986 leaves alone.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A connection to one management API, as one user.
pub(super) struct Http {
    client: Client,
    /// Up to `/api`, without a slash at the end.
    base: String,
    /// What errors show for it.
    shown: String,
    config: ManagementConfig,
    clock: Arc<dyn Clock>,
}

/// A path below `/api`.
#[derive(Debug, Clone)]
pub(crate) struct Path(String);

impl Path {
    /// Each part is one segment, whatever stands in it.
    ///
    /// # Errors
    ///
    /// `Invalid` for a part that no URL can carry: `.` and `..` mean other paths, however they are written.
    pub(crate) fn new(operation: &'static str, parts: &[&str]) -> Result<Self> {
        let mut path = String::new();
        for part in parts {
            if matches!(*part, "" | "." | "..") {
                let text = format!("no URL can carry the name {part:?}: give it another one");
                return Err(Error::new(ErrorKind::Invalid, operation).with_message(text));
            }
            path.push('/');
            path.extend(utf8_percent_encode(part, SEGMENT));
        }
        Ok(Self(path))
    }

    /// With a query, which is written as it is.
    pub(crate) fn query(mut self, query: &str) -> Self {
        self.0.push('?');
        self.0.push_str(query);
        self
    }
}

struct Answer {
    status: StatusCode,
    body: Vec<u8>,
}

impl Http {
    pub(super) fn new(config: ManagementConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let url = config.checked()?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let encrypted = url.scheme() == "https";
        let mut builder = Client::builder()
            // A proxy that the environment names would be given the password.
            .no_proxy()
            .redirect(Policy::none())
            // The broker closes one after a minute, and a request that meets the end of it would fail.
            .pool_idle_timeout(IDLE)
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(client_config(config.tls.as_ref(), encrypted)?);
        let shown = url.as_str().trim_end_matches('/').to_owned();
        let mut base = url;
        if let Some(name) = server_name(config.tls.as_ref(), &host)? {
            base.set_host(Some(&name)).map_err(|_| invalid("tls.server_name", "must be a DNS name"))?;
            builder = builder.dns_resolver(Instead { host });
        }
        let client = builder.build().map_err(|error| {
            Error::new(ErrorKind::Other, "configure the management API").with_source(error.without_url())
        })?;
        let base = base.as_str().trim_end_matches('/').to_owned();
        Ok(Self { client, base, shown, config, clock })
    }

    pub(super) fn user(&self) -> &str {
        &self.config.user
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// What is there; `None` where the API says that nothing is.
    pub(super) async fn find(&self, operation: &'static str, path: &Path) -> Result<Option<Value>> {
        let answer = self.send(operation, Method::GET, path, None).await?;
        if answer.status == StatusCode::NOT_FOUND && reason(&answer.body).is_some() {
            return Ok(None);
        }
        self.value(operation, &answer).map(Some)
    }

    /// What must be there.
    pub(super) async fn get(&self, operation: &'static str, path: &Path) -> Result<Value> {
        let answer = self.send(operation, Method::GET, path, None).await?;
        self.value(operation, &answer)
    }

    /// Asks for a change; what is answered to that says nothing.
    pub(super) async fn change(
        &self,
        operation: &'static str,
        method: Method,
        path: &Path,
        body: &Value,
    ) -> Result<()> {
        let answer = self.send(operation, method, path, Some(body)).await?;
        if answer.status.is_success() { Ok(()) } else { Err(self.refusal(operation, &answer, Some(body))) }
    }

    fn value(&self, operation: &'static str, answer: &Answer) -> Result<Value> {
        if !answer.status.is_success() {
            return Err(self.refusal(operation, answer, None));
        }
        serde_json::from_slice(&answer.body).map_err(|error| {
            // The error of serde has a place in the text, and nothing of the text.
            self.error(ErrorKind::Other, operation)
                .with_message(format!("the answer is not JSON; {NOT_THIS}"))
                .with_transient(false)
                .with_source(error)
        })
    }

    /// The whole of it is bounded by one wait on the clock: looking up the host, connecting, TLS, each byte of the
    /// answer. Dropping it ends the request; whether the broker did what was asked is then unknown, and all that is
    /// asked here can be asked again.
    async fn send(
        &self,
        operation: &'static str,
        method: Method,
        path: &Path,
        body: Option<&Value>,
    ) -> Result<Answer> {
        let timeout = self.config.timeout;
        match within(&*self.clock, timeout, self.exchange(operation, method, path, body)).await {
            Some(answer) => answer,
            None => Err(self
                .error(ErrorKind::Timeout, operation)
                .with_message(format!("no answer within {timeout:?}"))),
        }
    }

    async fn exchange(
        &self,
        operation: &'static str,
        method: Method,
        path: &Path,
        body: Option<&Value>,
    ) -> Result<Answer> {
        let url = format!("{}/api{}", self.base, path.0);
        let url = Url::parse(&url).map_err(|error| {
            self.error(ErrorKind::Invalid, operation).with_message("the path is no URL").with_source(error)
        })?;
        let login = self.config.password.expose();
        let mut request = self.client.request(method, url).basic_auth(&self.config.user, Some(login));
        if let Some(body) = body {
            request = request.json(body);
        }
        let mut response = request.send().await.map_err(|error| self.failure(operation, error))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failure(operation, error))? {
            if body.len() + chunk.len() > LARGEST_ANSWER {
                let text = format!("the answer has more than {} MiB", LARGEST_ANSWER / (1024 * 1024));
                return Err(self
                    .error(ErrorKind::Other, operation)
                    .with_message(format!("{text}; {NOT_THIS}"))
                    .with_transient(false));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { status, body })
    }

    fn error(&self, kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, operation).with_context("url", &self.shown)
    }

    /// The request did not come to an answer.
    fn failure(&self, operation: &'static str, error: reqwest::Error) -> Error {
        // It has the path in it, which the text of ours says better.
        let error = error.without_url();
        if refused_certificate(&error) {
            return self
                .error(ErrorKind::Refused, operation)
                .with_message("the certificate is not trusted; see `tls.ca` and `tls.server_name`")
                .with_transient(false)
                .with_source(error);
        }
        let text =
            if error.is_connect() { "cannot connect" } else { "the connection ended before the answer" };
        self.error(ErrorKind::Disconnected, operation).with_message(text).with_source(error)
    }

    /// The API answered, and it was no.
    fn refusal(&self, operation: &'static str, answer: &Answer, asked: Option<&Value>) -> Error {
        let reason = reason(&answer.body).map(|reason| self.clean(&reason, asked));
        let status = answer.status;
        let (kind, transient) = match status {
            StatusCode::UNAUTHORIZED if lacks_right(&answer.body) => (ErrorKind::Refused, false),
            StatusCode::UNAUTHORIZED => (ErrorKind::Unauthorized, false),
            StatusCode::NOT_FOUND => (ErrorKind::NotFound, false),
            StatusCode::TOO_MANY_REQUESTS => (ErrorKind::Refused, true),
            _ if status.is_client_error() => (ErrorKind::Refused, false),
            _ if status.is_server_error() => (ErrorKind::Other, true),
            _ => (ErrorKind::Other, false),
        };
        let mut text = match &reason {
            Some(reason) => format!("{} {reason}", status.as_u16()),
            None => status.to_string(),
        };
        if status == StatusCode::UNAUTHORIZED && kind == ErrorKind::Refused {
            text.push_str("; the login is right, and this user lacks a tag, or a right in the virtual host");
        }
        if status.is_redirection() {
            let _ =
                write!(text, "; it points elsewhere, and no password is sent there: set `url` to that place");
        } else if reason.is_none() && !status.is_server_error() {
            let _ = write!(text, "; {NOT_THIS}");
        }
        self.error(kind, operation).with_message(text).with_transient(transient)
    }

    /// Whatever stands at the other end may say what it was sent: the login, and a new user's password.
    fn clean(&self, text: &str, asked: Option<&Value>) -> String {
        let (user, password) = (&self.config.user, self.config.password.expose());
        let mut secrets = vec![STANDARD.encode(format!("{user}:{password}"))];
        // The password of the user guest says nothing that the user's name does not.
        if !user.contains(password) {
            secrets.push(password.to_owned());
        }
        let sent = ["password", "password_hash"].into_iter().filter_map(|field| asked?.get(field)?.as_str());
        secrets.extend(sent.map(str::to_owned));
        let mut text = text.to_owned();
        for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
            // Also as it stands in the JSON that was sent, with some signs escaped.
            let quoted = Value::from(secret.as_str()).to_string();
            text = text.replace(&quoted[1..quoted.len() - 1], "[hidden]").replace(secret, "[hidden]");
        }
        // Only now: a secret may have spaces, too.
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        line.chars().take(LONGEST_REASON).collect()
    }
}

const NOT_THIS: &str = "is there a management API of RabbitMQ at this URL?";

/// Whether a 401 is that of a user who may not do this, which the API writes in another spelling than that of a login that
/// it does not accept (`not_authorized`); so on 3.10, 4.0 and 4.3.
fn lacks_right(body: &[u8]) -> bool {
    let answer = serde_json::from_slice::<Value>(body).unwrap_or_default();
    answer.get("error").and_then(Value::as_str) == Some("not_authorised")
}

/// What the API gives as the reason; `None` where the answer is not one of the API's.
fn reason(body: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let error = answer.get("error")?.as_str()?;
    let mut text = String::new();
    match answer.get("reason") {
        Some(reason) => flat(reason, &mut text),
        None => text.push_str(error),
    }
    Some(text)
}

/// Some reasons are lists, with text as lists of characters.
fn flat(value: &Value, text: &mut String) {
    match value {
        Value::String(part) => text.push_str(part),
        Value::Array(parts) => {
            let letter = |part: &Value| {
                part.as_u64().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32)
            };
            let letters: Option<String> = parts.iter().map(letter).collect();
            match letters.filter(|letters| !letters.is_empty() && !letters.chars().any(char::is_control)) {
                Some(letters) => text.push_str(&letters),
                None => {
                    for part in parts {
                        flat(part, text);
                        text.push(' ');
                    }
                }
            }
        }
        other => {
            let _ = write!(text, "{other}");
        }
    }
}

/// Whether the other end's certificate is why there is no connection. It stands within an `io::Error`, which does not
/// name it as its source.
fn refused_certificate(error: &(dyn StdError + 'static)) -> bool {
    let is = |error: &(dyn StdError + 'static)| {
        matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_)))
    };
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if is(error) || inner.is_some_and(|inner| is(inner) || refused_certificate(inner)) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Path, reason};

    #[test]
    fn each_name_is_one_segment_of_the_path() {
        let path = Path::new("test", &["queues", "/", "a/b %?#é..\\"]).expect("can be written");
        assert_eq!(path.0, "/queues/%2F/a%2Fb%20%25%3F%23%C3%A9..%5C");
        for name in ["", ".", ".."] {
            let error = Path::new("test", &["queues", name]).expect_err("is another path");
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
    }

    #[test]
    fn a_reason_is_read_whatever_its_shape() {
        let said = |value: serde_json::Value| reason(value.to_string().as_bytes());
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(said(json!({"error": "bad_request", "reason": "a\n\nb"})), text("a\n\nb"));
        let nested = json!(["invalid_regexp", [40], [[109, 105, 115, 115], 1]]);
        assert_eq!(
            said(json!({"error": "bad_request", "reason": nested})),
            text("invalid_regexp ( miss 1  ")
        );
        assert_eq!(said(json!({"error": "x"})), text("x"));
        assert_eq!(said(json!([])), None);
        assert_eq!(reason(b"<html>"), None);
    }
}
