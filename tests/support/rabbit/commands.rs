//! Where the commands of RabbitMQ are.

use std::env;
use std::path::{Path, PathBuf};

const NEEDED: [&str; 2] = ["rabbitmq-server", "rabbitmqctl"];

/// Beside those on `PATH`; the first is where Debian's package has the commands themselves.
const USUAL_PLACES: [&str; 4] =
    ["/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/local/sbin", "/opt/rabbitmq/sbin"];

/// The folder of the commands: the one that `RABBITMQ_BIN` names, or else the machine's own.
pub(crate) fn folder() -> Result<PathBuf, String> {
    let missing = |folder: &Path| NEEDED.into_iter().find(|command| !folder.join(command).is_file());
    if let Some(named) = env::var_os("RABBITMQ_BIN").filter(|named| !named.is_empty()) {
        let folder = PathBuf::from(named);
        return match missing(&folder) {
            None => Ok(folder),
            Some(command) => Err(format!(
                "RABBITMQ_BIN is {}, and there is no {command} in it: name the folder that holds {}",
                folder.display(),
                NEEDED.join(" and ")
            )),
        };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(USUAL_PLACES.map(PathBuf::from))
        .find(|folder| missing(folder).is_none() && !switches_user(folder))
        .ok_or_else(|| {
            "these tests start a RabbitMQ of their own, and there is none on this machine: `apt-get install \
             rabbitmq-server`, or set RABBITMQ_BIN to the folder that holds rabbitmq-server and rabbitmqctl"
                .to_owned()
        })
}

/// Whether the commands are Debian's wrapper, which runs them as another user, in a folder and with logs of its own.
fn switches_user(folder: &Path) -> bool {
    folder
        .join(NEEDED[0])
        .canonicalize()
        .is_ok_and(|target| target.file_name().is_some_and(|name| name == "rabbitmq-script-wrapper"))
}
