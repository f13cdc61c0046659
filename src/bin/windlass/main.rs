//! The program `windlass`: sets up queues on RabbitMQ, and looks after what was dead-lettered there.

mod args;
mod config;
mod connect;
mod dlq;
mod exit;
mod letter;
mod output;
mod redrive;
mod status;
mod topology;

use std::process::ExitCode;

use clap::Parser;

use self::args::{Cli, Command, Dlq};
use self::config::Config;
use self::exit::{Failure, Outcome};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.json;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(run(cli)),
        Err(error) => Err(Failure::from(error)),
    };
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => {
            failure.tell(json);
            failure.exit.into()
        }
    }
}

async fn run(cli: Cli) -> Outcome {
    let config = Config::read(cli.env_file.as_deref())?;
    match cli.command {
        Command::Bootstrap(args) => topology::bootstrap(config, &args, cli.json).await,
        Command::Plan(args) => topology::plan(config, &args, cli.json).await,
        Command::Dlq(Dlq::List(args)) => dlq::list(config, &args, cli.json).await,
        Command::Dlq(Dlq::Peek(args)) => dlq::peek(config, &args, cli.json).await,
        Command::Dlq(Dlq::Redrive(args)) => redrive::redrive(config, args, cli.json).await,
        Command::Dlq(Dlq::Purge(args)) => dlq::purge(config, &args, cli.json).await,
        Command::Status => status::status(config, cli.json).await,
    }
}
