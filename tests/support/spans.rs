//! A subscriber that keeps spans and events for a test to read.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

pub(crate) type Fields = BTreeMap<&'static str, String>;

pub(crate) fn fields<const N: usize>(fields: [(&'static str, &str); N]) -> Fields {
    fields.into_iter().map(|(name, value)| (name, value.to_owned())).collect()
}

/// What was recorded on this thread since [`recording`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Spans(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    spans: Vec<(&'static str, Fields)>,
    /// Where the open spans are: ids are used again.
    open: HashMap<u64, usize>,
    closed: Vec<&'static str>,
    events: Vec<Fields>,
}

/// Records what windlass tells from this level up, on this thread, while the guard lives.
pub(crate) fn recording(level: Level) -> (Spans, DefaultGuard) {
    let spans = Spans::default();
    let ours = Targets::new().with_target("windlass", LevelFilter::from_level(level));
    let subscriber = tracing_subscriber::registry().with(spans.clone().with_filter(ours));
    (spans, tracing::subscriber::set_default(subscriber))
}

impl Spans {
    /// All spans with all that was recorded of them, in the order in which they began.
    pub(crate) fn all(&self) -> Vec<(&'static str, Fields)> {
        self.0.lock().unwrap().spans.clone()
    }

    pub(crate) fn named(&self, name: &str) -> Vec<Fields> {
        self.all().into_iter().filter(|span| span.0 == name).map(|span| span.1).collect()
    }

    /// The names of the spans that have ended, in that order.
    pub(crate) fn closed(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().closed.clone()
    }

    pub(crate) fn events(&self) -> Vec<Fields> {
        self.0.lock().unwrap().events.clone()
    }
}

struct Collect<'a>(&'a mut Fields);

impl Visit for Collect<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let mut kept = self.0.lock().unwrap();
        let mut fields = Fields::new();
        attributes.record(&mut Collect(&mut fields));
        let index = kept.spans.len();
        kept.open.insert(id.into_u64(), index);
        kept.spans.push((attributes.metadata().name(), fields));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut kept = self.0.lock().unwrap();
        let index = kept.open[&id.into_u64()];
        values.record(&mut Collect(&mut kept.spans[index].1));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Collect(&mut fields));
        self.0.lock().unwrap().events.push(fields);
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut kept = self.0.lock().unwrap();
        if let Some(index) = kept.open.remove(&id.into_u64()) {
            let name = kept.spans[index].0;
            kept.closed.push(name);
        }
    }
}
