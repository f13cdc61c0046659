//! What is configured: the broker, the stages and their order, how much of everything.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;

use super::Stage;

pub(crate) struct Settings {
    pub(crate) broker: String,
    pub(crate) management: Option<String>,
    /// At least one, and the last is the transport manager.
    pub(crate) stages: Vec<Stage>,
    pub(crate) transports: NonZeroU32,
    pub(crate) lines: u32,
    pub(crate) sink: Option<PathBuf>,
}

/// What is wrong with an argument or a variable.
#[derive(Debug)]
pub(crate) struct Wrong(pub(crate) String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const TWO: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

impl Default for Settings {
    fn default() -> Self {
        Self {
            broker: "memory:".to_owned(),
            management: None,
            stages: vec![Stage::Writer, Stage::TransportManager],
            transports: TWO,
            lines: 60,
            sink: None,
        }
    }
}

impl Settings {
    /// The variables of the process first, and then the arguments, which override them.
    pub(crate) fn read(
        arguments: impl IntoIterator<Item = String>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Wrong> {
        let mut settings = Self::default();
        for (name, option) in [
            ("PIPELINE_BROKER", "--broker"),
            ("PIPELINE_MANAGEMENT", "--management"),
            ("PIPELINE_STAGES", "--stages"),
        ] {
            if let Some(value) = variable(name) {
                settings.set(option, name, value)?;
            }
        }
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            if argument.starts_with("--") {
                let value = arguments.next().ok_or_else(|| Wrong(format!("{argument} needs a value")))?;
                settings.set(&argument, &argument, value)?;
            } else {
                settings.set("--broker", "the broker", argument)?;
            }
        }
        Ok(settings)
    }

    fn set(&mut self, option: &str, given_by: &str, value: String) -> Result<(), Wrong> {
        let wrong = |text: &str| Wrong(format!("{given_by}: {text}"));
        match option {
            "--broker" => self.broker = value,
            "--management" => self.management = Some(value),
            "--stages" => self.stages = stages(&value).map_err(|text| wrong(&text))?,
            "--transports" => {
                self.transports = value.parse().map_err(|_| wrong("a whole number from 1 on is needed"))?;
            }
            "--lines" => self.lines = value.parse().map_err(|_| wrong("a whole number is needed"))?,
            "--sink" => self.sink = Some(value.into()),
            _ => return Err(wrong("there is no such option")),
        }
        Ok(())
    }
}

fn stages(text: &str) -> Result<Vec<Stage>, String> {
    let known = || Stage::ALL.map(Stage::name).join(", ");
    let mut stages = Vec::new();
    for name in text.split(',').map(str::trim) {
        let stage = Stage::ALL.into_iter().find(|stage| stage.name() == name);
        let stage = stage.ok_or_else(|| format!("no stage is called {name:?}: there are {}", known()))?;
        if stages.contains(&stage) {
            return Err(format!("{name} is named twice"));
        }
        stages.push(stage);
    }
    match stages.last() {
        Some(Stage::TransportManager) => Ok(stages),
        _ => Err("the last stage must be transport-manager, which knows where the clients are".to_owned()),
    }
}
