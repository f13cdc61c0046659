//! Where the broker is and who to log in as: from the environment, and from a file in the same words.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use windlass::management::ManagementConfig;
use windlass::rabbitmq::{RabbitMqConfig, Secret};

use crate::exit::{Failure, Outcome};

const AMQP: &str = "WINDLASS_AMQP";
const MANAGEMENT: &str = "WINDLASS_MANAGEMENT";
const RUNTIME: &str = "WINDLASS_RUNTIME";
const PASSWORD: &str = "PASSWORD";
const PASSWORD_FILE: &str = "PASSWORD_FILE";

/// What the variables say.
pub(crate) struct Config {
    pub(crate) amqp: RabbitMqConfig,
    pub(crate) management: ManagementConfig,
    /// The password of the user that a topology names.
    pub(crate) runtime_password: Option<Secret>,
}

impl Config {
    /// Reads the environment, and `file` where there is one; what both have is taken from the environment.
    pub(crate) fn read(file: Option<&Path>) -> Outcome<Self> {
        let mut vars = match file {
            Some(path) => of_file(path)?,
            None => BTreeMap::new(),
        };
        for (name, value) in env::vars_os() {
            // A name that is no text is none of ours.
            let Some(name) = name.to_str().filter(|name| name.starts_with("WINDLASS_")) else { continue };
            let value = value.into_string();
            let value = value.map_err(|_| Failure::invalid(format!("{name}: is not text in UTF-8")))?;
            vars.insert(name.to_owned(), value);
        }
        Self::of(&vars)
    }

    fn of(vars: &BTreeMap<String, String>) -> Outcome<Self> {
        known(vars)?;
        let pairs = || vars.iter().map(|(name, value)| (name.clone(), value.clone()));
        let amqp = RabbitMqConfig::from_vars(AMQP, pairs())?;
        let mut management = ManagementConfig::from_vars(MANAGEMENT, pairs())?;
        let get = |name: &str| vars.get(&format!("{MANAGEMENT}_{name}"));
        if get("URL").is_none() {
            management.url = beside(&amqp)?;
            if management.tls.is_none() {
                management.tls.clone_from(&amqp.tls);
            }
        }
        let has_password = get("PASSWORD").or_else(|| get("PASSWORD_FILE")).is_some();
        let has_login = get("URL").is_some_and(|url| url.contains('@'));
        match get("USER") {
            None if !has_login => {
                management.user.clone_from(&amqp.user);
                if !has_password {
                    management.password = amqp.password.clone();
                }
            }
            Some(user) if !has_login && !has_password && *user == amqp.user => {
                management.password = amqp.password.clone();
            }
            Some(_) if !has_login && !has_password => {
                let text = format!(
                    "{MANAGEMENT}_USER: has no password: set {MANAGEMENT}_PASSWORD or _PASSWORD_FILE"
                );
                return Err(Failure::invalid(text));
            }
            _ => {}
        }
        Ok(Self { amqp, management, runtime_password: runtime_password(vars)? })
    }
}

/// The management API on the first host of the broker, at its usual port.
fn beside(amqp: &RabbitMqConfig) -> Outcome<String> {
    let Some(host) = amqp.hosts.first() else {
        return Err(Failure::invalid(format!("{AMQP}_HOSTS: names no host")));
    };
    let (scheme, port) = if amqp.tls.is_some() { ("https", 15_671) } else { ("http", 15_672) };
    let name = if host.name.contains(':') { format!("[{}]", host.name) } else { host.name.clone() };
    Ok(format!("{scheme}://{name}:{port}"))
}

/// A name that means nothing is a typo of one that would: without it, a default would be taken.
fn known(vars: &BTreeMap<String, String>) -> Outcome<()> {
    let ours = |name: &str, prefix: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('_'));
    let is_known = |name: &&String| {
        ours(name, AMQP)
            || ours(name, MANAGEMENT)
            || [PASSWORD, PASSWORD_FILE].map(|known| format!("{RUNTIME}_{known}")).contains(*name)
    };
    match vars.keys().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => {
            let text =
                format!("{name}: there is no such variable; `windlass --help` lists those that there are");
            Err(Failure::invalid(text))
        }
    }
}

fn runtime_password(vars: &BTreeMap<String, String>) -> Outcome<Option<Secret>> {
    let (plain, file) = (format!("{RUNTIME}_{PASSWORD}"), format!("{RUNTIME}_{PASSWORD_FILE}"));
    let (name, password) = match (vars.get(&plain), vars.get(&file)) {
        (Some(_), Some(_)) => {
            return Err(Failure::invalid(format!("{plain} and {file} are both set: leave one out")));
        }
        (Some(password), None) => (plain, password.clone()),
        (None, Some(path)) => {
            // Not with the path: somebody may have put the password itself there.
            let read = fs::read_to_string(path);
            let text = read.map_err(|error| {
                Failure::invalid(format!("{file}: the file that it names cannot be read: {}", error.kind()))
            })?;
            let line = text.strip_suffix('\n').unwrap_or(&text);
            (file, line.strip_suffix('\r').unwrap_or(line).to_owned())
        }
        (None, None) => return Ok(None),
    };
    if password.is_empty() {
        return Err(Failure::invalid(format!("{name}: the password is empty")));
    }
    Ok(Some(Secret::from(password)))
}

/// A line for each variable, `NAME=value`, as it is: no quotes, nothing is expanded. Empty lines and those that begin
/// with `#` are passed over.
fn of_file(path: &Path) -> Outcome<BTreeMap<String, String>> {
    let wrong = |text: String| Failure::invalid(format!("--env-file {}: {text}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let mut vars = BTreeMap::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The line may hold a password: it is not repeated.
        let Some((name, value)) = line.split_once('=') else {
            return Err(wrong(format!("line {number} is no NAME=value")));
        };
        let name = name.trim_end();
        if !name.starts_with("WINDLASS_") {
            return Err(wrong(format!("line {number} sets a variable that is not WINDLASS_…")));
        }
        if vars.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(wrong(format!("line {number} sets {name} again")));
        }
    }
    Ok(vars)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Config;
    use crate::exit::{Exit, Outcome};

    fn of(vars: &[(&str, &str)]) -> Outcome<Config> {
        let vars: BTreeMap<String, String> =
            vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Config::of(&vars)
    }

    #[test]
    fn the_management_api_is_beside_the_broker_where_nothing_else_is_said() {
        let login = |config: &Config| {
            (config.management.user.clone(), config.management.password.expose().to_owned())
        };
        let config = of(&[]).unwrap();
        assert_eq!(config.management.url, "http://localhost:15672");
        let config = of(&[("WINDLASS_AMQP_URI", "amqps://app:s3cret@rabbit-1:5671,rabbit-2/chat")]).unwrap();
        assert_eq!(config.management.url, "https://rabbit-1:15671");
        assert_eq!(login(&config), ("app".to_owned(), "s3cret".to_owned()));
        assert_eq!(config.amqp.vhost, "chat");
        let amqp = ("WINDLASS_AMQP_URI", "amqp://app:s3cret@[::1]");
        assert_eq!(of(&[amqp]).unwrap().management.url, "http://[::1]:15672");
        let config = of(&[amqp, ("WINDLASS_MANAGEMENT_URL", "https://admin:other@rabbit/mq")]).unwrap();
        assert_eq!(config.management.url, "https://rabbit/mq");
        assert_eq!(login(&config), ("admin".to_owned(), "other".to_owned()));
        let config =
            of(&[amqp, ("WINDLASS_MANAGEMENT_USER", "admin"), ("WINDLASS_MANAGEMENT_PASSWORD", "other")]);
        assert_eq!(login(&config.unwrap()), ("admin".to_owned(), "other".to_owned()));
    }

    #[test]
    fn what_is_wrong_is_named_and_never_repeated() {
        for vars in [
            [("WINDLASS_AMQP_URL", "amqp://app:s3cret@rabbit"), ("WINDLASS_AMQP_USER", "a")],
            [("WINDLASS_MANAGEMENT_URL", "rabbit:s3cret"), ("WINDLASS_AMQP_USER", "a")],
            [("WINDLASS_RUNTIME_PASSWORD", "s3cret"), ("WINDLASS_RUNTIME_PASSWORD_FILE", "s3cret")],
            [("WINDLASS_RUNTIME_PASSWORD_FILE", "s3cret"), ("WINDLASS_AMQP_USER", "a")],
            [("WINDLASS_RUNTIME_PASWORD", "s3cret"), ("WINDLASS_AMQP_USER", "a")],
            [("WINDLASS_AMPQ_URI", "amqp://app:s3cret@rabbit"), ("WINDLASS_AMQP_USER", "a")],
            [("WINDLASS_MANAGEMENT_USER", "admin"), ("WINDLASS_AMQP_PASSWORD", "s3cret")],
        ] {
            let failure = of(&vars).err().unwrap();
            assert_eq!(failure.exit, Exit::Invalid);
            assert!(failure.text.contains(vars[0].0), "{failure}");
            assert!(!failure.text.contains("s3cret"), "{failure}");
        }
    }
}
