//! `bootstrap` and `plan`.

use std::fs;
use std::ops::Range;
use std::path::Path;

use serde_json::json;
use windlass::bootstrap::{Bootstrapper, Plan};
use windlass::error::Chain;
use windlass::management::Management;
use windlass::topology::Topology;

use crate::args::TopologyArgs;
use crate::config::Config;
use crate::exit::{Exit, Failure, Outcome};
use crate::output;

pub(crate) async fn plan(config: Config, args: &TopologyArgs, json: bool) -> Outcome {
    let plan = bootstrapper(config, &args.topology)?.plan().await?;
    if json {
        output::json(&plan)?;
    } else {
        output::lines(plan.to_string().trim_end())?;
    }
    Ok(exit_of(&plan))
}

fn exit_of(plan: &Plan) -> Exit {
    match (plan.changes.is_empty(), plan.drift.is_empty()) {
        (_, false) => Exit::Drift,
        (false, true) => Exit::Changes,
        (true, true) => Exit::Done,
    }
}

/// Where it ends in the middle, what was done by then is told as well.
pub(crate) async fn bootstrap(config: Config, args: &TopologyArgs, json: bool) -> Outcome {
    match bootstrapper(config, &args.topology)?.apply().await {
        Ok(applied) => {
            if json {
                output::json(&applied)?;
            } else {
                output::lines(applied.to_string().trim_end())?;
            }
            Ok(if applied.drift.is_empty() { Exit::Done } else { Exit::Drift })
        }
        Err(failed) => {
            if json && !(failed.done.is_empty() && failed.not_done.is_empty()) {
                output::json(&json!({ "done": failed.done, "not_done": failed.not_done }))?;
            }
            let text = Chain(&failed).to_string();
            Err(Failure { text, ..Failure::from(windlass::Error::from(failed)) })
        }
    }
}

fn bootstrapper(config: Config, path: &Path) -> Outcome<Bootstrapper> {
    let topology = read(path)?;
    let vhost = &config.amqp.vhost;
    if *vhost != "/" && *vhost != topology.vhost {
        return Err(Failure::invalid(format!(
            "the topology is of the virtual host {:?}, and WINDLASS_AMQP_… of {vhost:?}: make them the same",
            topology.vhost
        )));
    }
    let bootstrapper = Bootstrapper::new(Management::new(config.management)?, topology);
    Ok(match config.runtime_password {
        Some(password) => bootstrapper.user_password(password),
        None => bootstrapper,
    })
}

fn read(path: &Path) -> Outcome<Topology> {
    let wrong = |text: String| Failure::invalid(format!("{}: {text}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let topology: Topology = if path.extension().is_some_and(|extension| extension == "json") {
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?
    } else {
        // Not as the error shows itself: with the line, in which a password may stand.
        toml::from_str(&text)
            .map_err(|error| wrong(format!("{}{}", place(&text, error.span()), error.message())))?
    };
    topology.validate().map_err(|error| wrong(error.message().unwrap_or_default().to_owned()))?;
    Ok(topology)
}

/// The line and the column that the span begins at, from 1.
fn place(text: &str, span: Option<Range<usize>>) -> String {
    let Some(before) = span.and_then(|span| text.get(..span.start)) else { return String::new() };
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|char| *char != '\n').count() + 1;
    format!("line {line}, column {column}: ")
}
