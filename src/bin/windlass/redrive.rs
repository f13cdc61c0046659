//! `dlq redrive`.

use std::fmt::Write;
use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use windlass::error::{Chain, ErrorKind};
use windlass::rabbitmq::dead_letters::{Ended, Progress, RedriveError, RedriveOptions, Redriven};

use crate::args::RedriveArgs;
use crate::config::Config;
use crate::connect::Broker;
use crate::exit::{Exit, Failure, Outcome};
use crate::output;

#[derive(Serialize)]
struct Report<'a> {
    queue: &'a str,
    dry_run: bool,
    /// `done`, `limit`, `cancelled` or `failed`.
    ended: &'static str,
    ready: u64,
    looked_at: u64,
    matched: u64,
    moved: u64,
    maybe_twice: u64,
    stayed: Stayed,
    flows: Vec<Flow>,
    obstacles: Vec<Obstacle>,
    warnings: Vec<String>,
    error: Option<Failed>,
}

/// Why messages that were looked at are still there.
#[derive(Serialize)]
struct Stayed {
    not_matched: u64,
    newer: u64,
    unknown_origin: u64,
    not_taken: u64,
}

#[derive(Serialize)]
struct Flow {
    from: Option<String>,
    to: String,
    cause: Option<String>,
    messages: u64,
}

#[derive(Serialize)]
struct Obstacle {
    to: String,
    reason: String,
    messages: u64,
}

#[derive(Serialize)]
struct Failed {
    kind: &'static str,
    message: String,
}

pub(crate) async fn redrive(config: Config, args: RedriveArgs, json: bool) -> Outcome {
    let options = options(&args);
    options.validate(&args.queue)?;
    let broker = Broker::open(config).await?;
    let letters = match broker.letters(&args.queue, &args.limit_of_queue).await {
        Ok(letters) => letters,
        Err(failure) => {
            broker.close().await;
            return Err(failure);
        }
    };
    let cancel = CancellationToken::new();
    let signals = tokio::spawn(stop_on_signal(cancel.clone()));
    let bar = bar(json);
    let told = bar.clone();
    let redriven = letters.redrive(options, &cancel, move |progress| show(&told, progress)).await;
    bar.finish_and_clear();
    signals.abort();
    let _ = signals.await;
    broker.close().await;
    let (report, error) = match redriven {
        Ok(report) => (report, None),
        // Nothing was begun: the error says it all.
        Err(error) if error.report().looked_at == 0 => return Err(failure_of(&error)),
        Err(error) => (error.report().clone(), Some(error)),
    };
    let exit = exit_of(&report, error.as_ref());
    if let Some(error) = &error {
        failure_of(error).tell(json);
    }
    let report = Report::of(&args.queue, report, error.as_ref());
    if json {
        output::json(&report)?;
    } else {
        output::lines(report.for_people())?;
    }
    Ok(exit)
}

fn options(args: &RedriveArgs) -> RedriveOptions {
    let mut options = RedriveOptions::new().dry_run(args.dry_run);
    for cause in &args.cause {
        options = options.cause(cause);
    }
    for id in &args.id {
        options = options.id(id);
    }
    if let Some(age) = args.older_than {
        options = options.older_than(age);
    }
    if let Some(age) = args.younger_than {
        options = options.younger_than(age);
    }
    if let Some(queue) = &args.to {
        options = options.to(queue);
    }
    if let Some(limit) = args.limit {
        options = options.limit(limit);
    }
    if let Some(rate) = args.rate {
        options = options.rate(rate);
    }
    options
}

/// The first signal ends the redrive in good order; the program does not die of it.
async fn stop_on_signal(cancel: CancellationToken) {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (interrupt, terminate) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
        if let (Ok(mut interrupt), Ok(mut terminate)) = (interrupt, terminate) {
            // Only waits are lost here.
            tokio::select! {
                biased;
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
    }
    #[cfg(not(unix))]
    let _ = tokio::signal::ctrl_c().await;
    cancel.cancel();
}

/// On standard error, where that is a terminal and a person reads.
fn bar(json: bool) -> ProgressBar {
    if json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} looked at, {msg}, {per_sec}, {eta} left");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.ready);
    bar.set_position(progress.looked_at);
    bar.set_message(format!("{} moved", progress.moved));
}

fn failure_of(error: &RedriveError) -> Failure {
    Failure::from(error.error().clone())
}

fn exit_of(report: &Redriven, error: Option<&RedriveError>) -> Exit {
    let stayed = report.not_taken + report.unknown_origin > 0 && !report.dry_run;
    match report.ended {
        _ if error.is_some() => Exit::Incomplete,
        Ended::Done | Ended::Limit if stayed => Exit::Stayed,
        Ended::Done | Ended::Limit => Exit::Done,
        _ => Exit::Incomplete,
    }
}

impl<'a> Report<'a> {
    fn of(queue: &'a str, report: Redriven, error: Option<&RedriveError>) -> Self {
        let flows = report.flows.into_iter().map(|(flow, messages)| Flow {
            from: flow.origin,
            to: flow.to,
            cause: flow.cause,
            messages,
        });
        let obstacles = report.obstacles.into_iter().map(|(obstacle, messages)| Obstacle {
            to: obstacle.to,
            reason: obstacle.reason,
            messages,
        });
        Self {
            queue,
            dry_run: report.dry_run,
            ended: match report.ended {
                Ended::Done => "done",
                Ended::Limit => "limit",
                Ended::Cancelled => "cancelled",
                _ => "failed",
            },
            ready: report.ready,
            looked_at: report.looked_at,
            matched: report.matched,
            moved: report.moved,
            maybe_twice: report.maybe_twice,
            stayed: Stayed {
                not_matched: report.not_matched,
                newer: report.newer,
                unknown_origin: report.unknown_origin,
                not_taken: report.not_taken,
            },
            flows: flows.collect(),
            obstacles: obstacles.collect(),
            warnings: report.warnings.iter().map(ToString::to_string).collect(),
            error: error.map(|error| Failed {
                kind: ErrorKind::name(error.kind()),
                message: Chain(error.error()).to_string(),
            }),
        }
    }

    fn for_people(&self) -> String {
        let mut text = String::new();
        // A string can always be written to.
        let _ = self.write(&mut text);
        text.truncate(text.trim_end().len());
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        if !self.flows.is_empty() {
            let rows = self.flows.iter().map(|flow| {
                let unknown = || "?".to_owned();
                [
                    flow.from.clone().unwrap_or_else(unknown),
                    flow.to.clone(),
                    flow.cause.clone().unwrap_or_else(unknown),
                    flow.messages.to_string(),
                ]
            });
            writeln!(out, "{}\n", output::table(["from", "to", "cause", "messages"], rows, 3))?;
        }
        let queue = output::plain(self.queue);
        if self.dry_run {
            writeln!(out, "dry run: {} of {} in {queue} would be sent back", self.matched, self.ready)?;
        } else {
            writeln!(out, "{} of {} in {queue} sent back", self.moved, self.ready)?;
        }
        let Stayed { not_matched, newer, unknown_origin, not_taken } = self.stayed;
        for (count, why) in [
            (not_matched, "stayed: not asked for"),
            (newer, "stayed: died after this began"),
            (unknown_origin, "stayed: nothing says where they came from; name a queue with --to"),
            (not_taken, "stayed: not taken where they were sent"),
            (self.maybe_twice, "may be there twice: sent, and not surely taken out of the dead letters"),
        ] {
            if count > 0 {
                writeln!(out, "{count} {why}")?;
            }
        }
        for Obstacle { to, reason, messages } in &self.obstacles {
            writeln!(out, "  {messages} to {}: {}", output::plain(to), output::plain(reason))?;
        }
        for warning in &self.warnings {
            writeln!(out, "warning: {}", output::plain(warning))?;
        }
        match (&self.error, self.ended) {
            (Some(error), _) => writeln!(out, "ended early: {}; run it again", output::plain(&error.message)),
            (None, "cancelled") => writeln!(out, "stopped; run it again to go on"),
            (None, "limit") => writeln!(out, "the limit was reached"),
            (None, _) => Ok(()),
        }
    }
}
