//! Imports in `src/` go down only: reads every file and fails on an edge that the table below does not allow.
//!
//! Imports are `use` trees, paths in code and types (`crate::memory::X`), and paths within macro calls. Links in doc
//! comments are none: a page may point anywhere. Test modules in `src/` are held to the same rules: a unit test that
//! needs an upper layer is an integration test, and belongs beside this file.

// Clippy takes the helpers of a test for code that is shipped.
#![allow(clippy::expect_used)]

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::UseTree;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A module at the top of `src/`, and what it may import beside itself.
struct Rule {
    module: &'static str,
    layers: &'static [u8],
    modules: &'static [&'static str],
}

/// The layers, lowest first.
const LAYERS: &[&[&str]] = &[
    &["error", "message", "clock", "backoff"],
    &["source", "publisher", "topology", "codec", "queue"],
    &["handler", "consumer", "deliveries", "memory", "rabbitmq"],
    &["conformance", "metrics", "broker", "management", "bootstrap"],
];

#[rustfmt::skip]
const RULES: &[Rule] = &[
    Rule { module: "error", layers: &[], modules: &[] },
    // What is wrong with a message is an error of the crate's.
    Rule { module: "message", layers: &[], modules: &["error"] },
    // `ControlledClock::until_sleepers` fails when the sleepers do not come.
    Rule { module: "clock", layers: &[], modules: &["error"] },
    Rule { module: "backoff", layers: &[], modules: &[] },
    Rule { module: "source", layers: &[0], modules: &[] },
    Rule { module: "publisher", layers: &[0], modules: &[] },
    // Checks names as `queue` does.
    Rule { module: "topology", layers: &[0], modules: &["queue"] },
    Rule { module: "codec", layers: &[0], modules: &[] },
    // A name with the codec of its payloads, and how a publisher sends one.
    Rule { module: "queue", layers: &[0], modules: &["codec", "publisher"] },
    Rule { module: "handler", layers: &[0, 1], modules: &[] },
    // The consumer runs handlers and reads their errors.
    Rule { module: "consumer", layers: &[0, 1], modules: &["handler"] },
    Rule { module: "deliveries", layers: &[0, 1], modules: &[] },
    Rule { module: "memory", layers: &[0, 1], modules: &[] },
    Rule { module: "rabbitmq", layers: &[0, 1], modules: &[] },
    // Adapters come in through the harness: the suite names none, and no policy either.
    Rule { module: "conformance", layers: &[0, 1], modules: &[] },
    // Reads what a consumer tells and the errors of handlers in it: above both, and nothing below needs it.
    Rule { module: "metrics", layers: &[0, 1], modules: &["consumer", "handler"] },
    // One broker or the other, by its URL.
    Rule { module: "broker", layers: &[0, 1], modules: &["memory", "rabbitmq"] },
    // Logs in over HTTP with the secrets and the TLS that the adapter is configured by.
    Rule { module: "management", layers: &[0, 1], modules: &["rabbitmq"] },
    // Declares the wait queues that the adapter will use, as it would itself.
    Rule { module: "bootstrap", layers: &[0, 1], modules: &["management", "rabbitmq"] },
];

/// The only module that may name the AMQP client.
const NAMES_LAPIN: &str = "rabbitmq";

/// The only module that may ask the time of anything but a `Clock`.
const NAMES_TIME: &str = "clock";

fn layer(module: &str) -> Option<u8> {
    let layer = LAYERS.iter().position(|modules| modules.contains(&module))?;
    u8::try_from(layer).ok()
}

fn may_import(from: &str, to: &str) -> bool {
    let rule = RULES.iter().find(|rule| rule.module == from);
    from == to
        || rule.is_some_and(|rule| {
            rule.modules.contains(&to) || layer(to).is_some_and(|layer| rule.layers.contains(&layer))
        })
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wrong {
    line: usize,
    what: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.what)
    }
}

/// Looks through one file of the module `module`, which is a path such as `["consumer", "worker"]`; the crate's root,
/// which may import everything, is the empty path.
fn check(module: &[&str], code: &str) -> Vec<Wrong> {
    let file = match syn::parse_file(code) {
        Ok(file) => file,
        Err(error) => {
            return vec![Wrong { line: error.span().start().line, what: format!("does not parse: {error}") }];
        }
    };
    let mut checker = Checker {
        module: module.iter().map(|name| (*name).to_owned()).collect(),
        exported: exported_macros(&file),
        wrong: BTreeSet::new(),
    };
    checker.visit_file(&file);
    checker.wrong.into_iter().collect()
}

struct Checker {
    /// Where the code that is being looked at stands.
    module: Vec<String>,
    /// The macros that the file exports: the language puts those at the crate's root, whatever their module.
    exported: Vec<String>,
    wrong: BTreeSet<Wrong>,
}

fn exported_macros(file: &syn::File) -> Vec<String> {
    let macros = file.items.iter().filter_map(|item| match item {
        syn::Item::Macro(item) if item.attrs.iter().any(|each| each.path().is_ident("macro_export")) => {
            item.ident.as_ref().map(ToString::to_string)
        }
        _ => None,
    });
    macros.collect()
}

impl Checker {
    fn wrong(&mut self, span: Span, what: String) {
        self.wrong.insert(Wrong { line: span.start().line, what });
    }

    fn top(&self) -> &str {
        self.module.first().map_or("", String::as_str)
    }

    /// Judges one path, as it is written. An empty last segment stands for a `*`.
    fn path(&mut self, path: &[String], span: Span) {
        let is_top = self.top().is_empty();
        let segments: Vec<&str> = path.iter().map(String::as_str).collect();
        if segments.last() == Some(&"") {
            let written = segments[..segments.len() - 1].join("::");
            self.wrong(span, format!("`{written}::*` hides what is imported: name it"));
        }
        if self.top() != NAMES_TIME {
            let names_clock = segments.starts_with(&["tokio", "time"])
                || segments.windows(2).any(|pair| matches!(pair, ["Instant" | "SystemTime", "now"]));
            if names_clock {
                let written = segments.join("::");
                self.wrong(span, format!("`{written}` asks the time itself: go through `Clock`"));
            }
        }
        if is_top {
            return;
        }
        match self.resolve(&segments) {
            None => {}
            Some(Target::Root) => {
                let written = segments.join("::");
                self.wrong(span, format!("`{written}` goes up to the crate's root: name the module"));
            }
            Some(Target::Module(to)) => {
                let from = self.top().to_owned();
                if self.exported.contains(&to) {
                    // The file's own.
                } else if layer(&to).is_none() {
                    self.wrong(span, format!("`crate::{to}` is no module of the table: name the module"));
                } else if !may_import(&from, &to) {
                    self.wrong(span, format!("`{from}` may not import `{to}`"));
                }
            }
        }
    }

    /// Which module at the top of the crate a path leads into; `None` for paths that begin elsewhere, such as other
    /// crates and names that a `use` brought in.
    fn resolve(&self, segments: &[&str]) -> Option<Target> {
        let (mut module, mut rest) = match segments.split_first()? {
            (&("crate" | "$crate"), rest) => (Vec::new(), rest),
            (&"self", rest) => (self.module.clone(), rest),
            (&"super", _) => (self.module.clone(), segments),
            _ => return None,
        };
        while let Some((&"super", after)) = rest.split_first() {
            module.pop();
            rest = after;
        }
        // `use super::{self}` names the module itself.
        let rest = rest.iter().filter(|name| !matches!(**name, "self" | "")).map(|name| (*name).to_owned());
        Some(module.into_iter().chain(rest).next().map_or(Target::Root, Target::Module))
    }

    fn use_tree(&mut self, before: &mut Vec<String>, tree: &UseTree) {
        let depth = before.len();
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.unraw().to_string());
                self.use_tree(before, &path.tree);
            }
            UseTree::Name(name) => {
                before.push(name.ident.unraw().to_string());
                self.path(before, name.span());
            }
            UseTree::Rename(rename) => {
                before.push(rename.ident.unraw().to_string());
                self.path(before, rename.span());
            }
            UseTree::Glob(glob) => {
                before.push(String::new());
                self.path(before, glob.span());
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.use_tree(before, tree)),
        }
        before.truncate(depth);
    }

    /// Finds the paths in the tokens of a macro, which have no syntax tree. `before` is what stands in front of a
    /// group of a `use` tree.
    fn tokens(&mut self, before: &[String], tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Group(group) => self.tokens(&[], group.stream()),
                TokenTree::Ident(first) => {
                    let mut path = before.to_vec();
                    path.push(first.unraw().to_string());
                    let mut group = None;
                    while is_colon(tokens.get(at)) && is_colon(tokens.get(at + 1)) {
                        match tokens.get(at + 2) {
                            Some(TokenTree::Ident(next)) => path.push(next.unraw().to_string()),
                            Some(TokenTree::Punct(star)) if star.as_char() == '*' => path.push(String::new()),
                            Some(TokenTree::Group(more)) if more.delimiter() == Delimiter::Brace => {
                                group = Some(more.stream());
                            }
                            _ => break,
                        }
                        at += 3;
                    }
                    match group {
                        Some(group) => self.tokens(&path, group),
                        // A single word is no path: `self`, or `crate` in `pub(crate)`.
                        None if path.len() > 1 => self.path(&path, first.span()),
                        None => {}
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// Any mention at all, be it as a crate, a module or a name.
    fn lapin(&mut self, ident: &proc_macro2::Ident) {
        if ident == "lapin" && self.top() != NAMES_LAPIN {
            self.wrong(ident.span(), format!("`lapin` is named outside `{NAMES_LAPIN}`"));
        }
    }

    fn lapin_in(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => self.lapin(&ident),
                TokenTree::Group(group) => self.lapin_in(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

enum Target {
    Root,
    Module(String),
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
}

impl<'a> Visit<'a> for Checker {
    fn visit_ident(&mut self, ident: &'a proc_macro2::Ident) {
        self.lapin(ident);
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if item.attrs.iter().any(|attribute| attribute.path().is_ident("path")) {
            self.wrong(item.span(), format!("`mod {}` has a `#[path]`: a file is its module", item.ident));
        }
        self.module.push(item.ident.unraw().to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.use_tree(&mut Vec::new(), &item.tree);
        visit::visit_item_use(self, item);
    }

    fn visit_item_extern_crate(&mut self, item: &'a syn::ItemExternCrate) {
        self.wrong(item.span(), format!("`extern crate {}` gives a crate another name", item.ident));
        visit::visit_item_extern_crate(self, item);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.segments.len() > 1 {
            let segments: Vec<String> =
                path.segments.iter().map(|segment| segment.ident.unraw().to_string()).collect();
            self.path(&segments, path.span());
        }
        visit::visit_path(self, path);
    }

    /// `pub(crate)`, `pub(in crate::x)`: who may see something is no import.
    fn visit_vis_restricted(&mut self, _: &'a syn::VisRestricted) {}

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.tokens(&[], call.tokens.clone());
        self.lapin_in(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

fn source_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every Rust file below `directory`, with its module path.
fn files(directory: &Path, module: &[String], found: &mut Vec<(PathBuf, Vec<String>)>) {
    for entry in std::fs::read_dir(directory).expect("the directory can be read") {
        let path = entry.expect("the entry can be read").path();
        let name = path.file_stem().expect("an entry has a name").to_string_lossy().into_owned();
        let inner = || module.iter().cloned().chain([name.clone()]).collect::<Vec<_>>();
        if path.is_dir() {
            files(&path, &inner(), found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let is_root = matches!(name.as_str(), "lib" | "main") && module.is_empty();
            let is_inner = !is_root && name != "mod";
            found.push((path.clone(), if is_inner { inner() } else { module.to_vec() }));
        }
    }
}

fn all_files() -> Vec<(PathBuf, Vec<String>)> {
    let mut found = Vec::new();
    files(&source_root(), &[], &mut found);
    // Programs are at the top, and import what they like.
    found.retain(|(_, module)| module.first().is_none_or(|first| first != "bin"));
    found
}

#[test]
fn no_file_in_src_imports_up_or_across() {
    let files = all_files();
    assert!(files.len() > 20, "only {} files were found", files.len());
    let mut wrong = String::new();
    for (path, module) in files {
        let code = std::fs::read_to_string(&path).expect("the file can be read");
        let module: Vec<&str> = module.iter().map(String::as_str).collect();
        for each in check(&module, &code) {
            wrong += &format!("\n{}:{each}", path.display());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_module_is_in_the_table_and_once() {
    for (path, module) in all_files() {
        if let Some(top) = module.first() {
            assert!(layer(top).is_some(), "{} is of a module that stands in no layer", path.display());
        }
    }
    let mut in_layers: Vec<&str> = LAYERS.iter().flat_map(|layer| layer.iter().copied()).collect();
    let mut in_rules: Vec<&str> = RULES.iter().map(|rule| rule.module).collect();
    in_layers.sort_unstable();
    in_rules.sort_unstable();
    assert_eq!(in_layers, in_rules);
    in_rules.dedup();
    assert_eq!(in_layers, in_rules, "a module stands in the table twice");
}

#[test]
fn every_rule_goes_down_or_to_a_listed_neighbour_and_never_both_ways() {
    for rule in RULES {
        let own = layer(rule.module).expect("it is in a layer");
        assert!(rule.layers.iter().all(|layer| *layer < own), "{} may import upwards", rule.module);
        for listed in rule.modules {
            assert!(layer(listed).is_some_and(|layer| layer <= own), "{} → {listed} goes up", rule.module);
            assert!(!may_import(listed, rule.module), "{} ⇄ {listed}", rule.module);
        }
    }
}

/// What the checker says of a snippet in a module, each on a line of its own.
fn said(module: &[&str], code: &str) -> String {
    check(module, code).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_checker_sees_each_way_to_name_a_module() {
    const WORKER: &[&str] = &["consumer", "worker"];
    for code in [
        "use crate::memory::MemorySource;",
        "use crate::memory;",
        "use crate::memory as other;",
        "use crate::{error::Error, memory::{broker, MemorySource}};",
        "use super::super::memory::MemorySource;",
        "pub use crate::memory::MemorySource;",
        "use self::super::super::memory::MemorySource;",
        "fn f() { let x = crate::memory::MemorySource::new(clock); }",
        "fn f(x: &crate::memory::MemorySource) {}",
        "fn f() -> Option<Vec<crate::memory::MemorySource>> { None }",
        "impl crate::memory::X for Y {}",
        "fn f() { match x { crate::memory::X::Y => {} } }",
        "fn f() { crate::memory::log!(1) }",
        "fn f() { <X as crate::memory::Trait>::f() }",
        "fn f() { println!(\"{}\", crate::memory::X) }",
        "fn f() { select! { x = async { crate::memory::f() } => {} } }",
        "macro_rules! m { () => { $crate::memory::X } }",
        "macro_rules! m { () => { use $crate::{error::Error, memory::X}; } }",
        "mod inner { use super::super::super::memory::X; }",
        "#[cfg(test)] mod tests { use crate::memory::X; }",
        "use crate::r#memory::X;",
    ] {
        assert_eq!(said(WORKER, code), "1: `consumer` may not import `memory`", "{code}");
    }
}

#[test]
fn the_checker_lets_pass_what_is_allowed() {
    for (module, code) in [
        (&["consumer", "worker"][..], "use super::held::Held; use super::Options; use self::inner::X;"),
        (&["consumer", "worker"], "use crate::handler::Handler; use crate::source::Delivery;"),
        (
            &["consumer", "worker"],
            "mod inner { use super::super::held::Held; pub(in crate::consumer) struct X; }",
        ),
        (&["consumer"], "pub(crate) fn f(x: Self::X) { self.x(crate::clock::LONGEST_WAIT) }"),
        (&["clock"], "use crate::error::Error; fn f() { tokio::time::sleep(x); Instant::now(); }"),
        (&["clock", "controlled"], "use super::Clock; use crate::error::Result;"),
        (
            &["memory"],
            "//! See [`crate::consumer`].\n/// [`X`](crate::rabbitmq::X)\nuse crate::publisher::Publisher;",
        ),
        (&["memory"], "macro_rules! m { ($x:ident) => { pub(crate) fn $x(self) { self.y() } } }"),
        (&["rabbitmq", "channel"], "use lapin::Channel; use crate::topology::Queue;"),
        (&["conformance"], "#[macro_export] macro_rules! m { () => { $crate::m! {} } }"),
        (&[], "pub mod memory; pub use memory::MemorySource; pub use crate::consumer::QueueConsumer;"),
    ] {
        assert_eq!(said(module, code), "", "{code}");
    }
}

#[test]
fn the_checker_knows_the_edges_of_the_table() {
    for (module, to) in [
        ("error", "message"),
        ("error", "clock"),
        ("clock", "backoff"),
        ("backoff", "clock"),
        ("clock", "source"),
        ("source", "publisher"),
        ("publisher", "source"),
        ("source", "handler"),
        ("codec", "queue"),
        ("publisher", "queue"),
        ("queue", "consumer"),
        ("handler", "consumer"),
        ("deliveries", "consumer"),
        ("consumer", "deliveries"),
        ("memory", "rabbitmq"),
        ("rabbitmq", "memory"),
        ("rabbitmq", "consumer"),
        ("conformance", "memory"),
        ("conformance", "consumer"),
        ("source", "conformance"),
        ("metrics", "memory"),
        ("metrics", "rabbitmq"),
        ("consumer", "metrics"),
        ("rabbitmq", "metrics"),
    ] {
        let expected = format!("1: `{module}` may not import `{to}`");
        assert_eq!(said(&[module], &format!("use crate::{to}::X;")), expected);
        // The same from beside: `super` is the crate's root here.
        assert_eq!(said(&[module], &format!("use super::{to}::X;")), expected);
    }
}

#[test]
fn the_checker_sees_what_would_get_around_it() {
    for (code, expected) in [
        ("use crate::*;", "1: `crate::*` hides what is imported: name it"),
        ("mod tests { use super::*; }", "1: `super::*` hides what is imported: name it"),
        ("use std::io::*;", "1: `std::io::*` hides what is imported: name it"),
        ("m! { use std::io::{Read, *}; use super::*; }", "1: `super::*` hides what is imported: name it"),
        ("use crate as windlass;", "1: `crate` goes up to the crate's root: name the module"),
        ("use super::{self as root};", "1: `super::self` goes up to the crate's root: name the module"),
        (
            "use crate::{Error, error::Result};",
            "1: `crate::Error` is no module of the table: name the module",
        ),
        (
            "macro_rules! m { () => { $crate::m! {} } }",
            "1: `crate::m` is no module of the table: name the module",
        ),
        ("extern crate self as windlass;", "1: `extern crate self` gives a crate another name"),
        ("#[path = \"x.rs\"] mod x;", "1: `mod x` has a `#[path]`: a file is its module"),
        ("use lapin::Channel;", "1: `lapin` is named outside `rabbitmq`"),
        ("fn f() { ::lapin::connect() }", "1: `lapin` is named outside `rabbitmq`"),
        ("fn f() { vec![lapin::X] }", "1: `lapin` is named outside `rabbitmq`"),
        ("use {tokio::{time::sleep}};", "1: `tokio::time::sleep` asks the time itself: go through `Clock`"),
        ("use tokio::time;", "1: `tokio::time` asks the time itself: go through `Clock`"),
        ("fn f() { Instant::now() }", "1: `Instant::now` asks the time itself: go through `Clock`"),
        (
            "fn f() { vec![SystemTime::now()] }",
            "1: `SystemTime::now` asks the time itself: go through `Clock`",
        ),
    ] {
        let said = said(&["source"], code);
        assert!(said.lines().any(|line| line == expected), "{code}: {said}");
    }
}
