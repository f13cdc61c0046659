//! What can be said on the command line. No credentials: those come from the environment or a file.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Sets up queues on RabbitMQ, and looks after what was dead-lettered there.
///
/// Where the broker is, and who to log in as, is read from the environment or from a file (--env-file); never from the
/// command line, which everybody on the machine can read.
#[derive(Debug, Parser)]
#[command(name = "windlass", version, after_long_help = AFTER)]
pub(crate) struct Cli {
    /// A file with the same variables, one NAME=value a line, for those that the environment does not have
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) env_file: Option<PathBuf>,

    /// One JSON document on standard output, and errors as JSON on standard error
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER: &str = "\
Environment:
  WINDLASS_AMQP_URI, _HOSTS, _USER, _PASSWORD, _PASSWORD_FILE, _VHOST, _TLS...   the broker
  WINDLASS_MANAGEMENT_URL, _USER, _PASSWORD, _PASSWORD_FILE, _TLS_CA_FILE...     its management API; by default on the
                        first host at port 15672 (15671 with TLS), with the user of AMQP
  WINDLASS_RUNTIME_PASSWORD, WINDLASS_RUNTIME_PASSWORD_FILE                      of the user that a topology names

Exit codes:
  0  done; for `plan`: there is nothing to do
  1  failed
  2  the command line, the configuration or the topology cannot be right
  3  `plan`: there are changes to make
  4  `plan`, `bootstrap`: what is there is not what the topology says (drift)
  5  the broker cannot be reached, or does not answer in time
  6  the broker refuses: the credentials, for want of a right, or what it was asked for
  7  no such queue or virtual host
  8  `dlq redrive`: it was stopped, or the connection went; run it again to go on
  9  `dlq purge`: not confirmed
  10 `dlq redrive`: some were not taken where they were sent, or nothing says where they came from; they stay

With --json a command that cannot be read is still told in words.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Makes what a topology says, where it is not there yet
    Bootstrap(TopologyArgs),
    /// Shows what `bootstrap` would change, and what has drifted; changes nothing
    Plan(TopologyArgs),
    /// Looks at dead letters, sends them back, or deletes them
    #[command(subcommand)]
    Dlq(Dlq),
    /// Shows the queues: how many messages wait, how many are with consumers, and how many of these there are
    Status,
}

#[derive(Debug, Args)]
pub(crate) struct TopologyArgs {
    /// The topology: a TOML file, or JSON where its name ends in .json
    #[arg(long, short, value_name = "FILE")]
    pub(crate) topology: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dlq {
    /// Shows the dead-letter queues that hold something, how much, and since when
    List(ListArgs),
    /// Shows dead letters, oldest first; takes nothing away
    Peek(PeekArgs),
    /// Sends dead letters back to the queues that they came from
    Redrive(RedriveArgs),
    /// Deletes all dead letters of a queue
    Purge(PurgeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Those that are empty, too
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PeekArgs {
    /// The dead-letter queue, such as orders.dlq
    pub(crate) queue: String,

    /// How many to show at most
    #[arg(long, short = 'n', default_value = "10", value_name = "COUNT")]
    pub(crate) limit: NonZeroUsize,

    /// How many bytes of each body to show; 0 for all of it
    #[arg(long, default_value_t = 1024, value_name = "BYTES")]
    pub(crate) body_bytes: usize,

    #[command(flatten)]
    pub(crate) limit_of_queue: DeliveryLimit,
}

/// Each look at a message counts against the delivery limit of a quorum queue.
#[derive(Debug, Args)]
pub(crate) struct DeliveryLimit {
    /// The delivery limit of the queue, where the management API cannot be asked for it; 0 for none
    #[arg(long, value_name = "COUNT")]
    pub(crate) delivery_limit: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct RedriveArgs {
    /// The dead-letter queue, such as orders.dlq
    pub(crate) queue: String,

    /// Only what died of this: a cause such as `terminal`, or one with its detail; may be repeated
    #[arg(long, value_name = "CAUSE")]
    pub(crate) cause: Vec<String>,

    /// Only the message with this id; may be repeated
    #[arg(long, value_name = "ID")]
    pub(crate) id: Vec<String>,

    /// Only what died longer ago than this, such as 30m or 2days
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) older_than: Option<Duration>,

    /// Only what died less long ago than this
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) younger_than: Option<Duration>,

    /// Send to this queue, and not to the one that each came from
    #[arg(long, value_name = "QUEUE")]
    pub(crate) to: Option<String>,

    /// How many to send at most
    #[arg(long, short = 'n', value_name = "COUNT")]
    pub(crate) limit: Option<NonZeroU64>,

    /// How many to send in a second at most
    #[arg(long, value_name = "PER_SECOND")]
    pub(crate) rate: Option<NonZeroU32>,

    /// Only count what would be sent
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) limit_of_queue: DeliveryLimit,
}

#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    /// The dead-letter queue, such as orders.dlq
    pub(crate) queue: String,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,

    /// Even where its name does not end in .dlq: what waits there may be work
    #[arg(long)]
    pub(crate) any_queue: bool,
}
