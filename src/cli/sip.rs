//! `vivavoce sip`: what becomes of telephone calls: by the rules that a server keeps ([`trace`] follows a real one).

mod trace;

use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::Failure;
use crate::config::{Config, RoomMode, Settings};
use crate::providers::embedded;
use crate::telephony::agent::{header, read_invite};
use crate::telephony::call::attributes::{self, Ends};
use crate::telephony::dispatch::{self, Entered, Facts, Gate, Placement, Route};
use crate::telephony::trunks::{Filter, Trunks};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    vivavoce sip trace                    follow the messages of the next call\n  \
    vivavoce sip rules test invite.txt    which rule a call would take")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Dispatch rules of inbound calls
    Rules(Rules),
    /// Follow the SIP messages of a call at the running server
    Trace(trace::Arguments),
}

#[derive(Debug, Args)]
struct Rules {
    #[command(subcommand)]
    command: RulesCommand,
}

#[derive(Debug, Subcommand)]
enum RulesCommand {
    /// Say which trunk and which rule a call would take, and why
    #[command(
        after_help = "Examples:\n  vivavoce sip rules test invite.txt --source 198.51.100.7\n\nThe INVITE is text as a trace or a log shows it. Trunks and rules are those that the server keeps in its data \
        folder. Exit status: 0 the call would be let in, 1 it would be refused."
    )]
    Test(Test),
}

#[derive(Debug, Args)]
struct Test {
    /// File with the INVITE, or - for standard input
    invite: PathBuf,
    /// Where the call comes from (default: the topmost Via)
    #[arg(long, value_name = "ADDRESS")]
    source: Option<IpAddr>,
    /// A PIN that the caller enters
    #[arg(long, value_name = "DIGITS")]
    pin: Option<String>,
}

pub fn run(config: &Config, arguments: &Arguments) -> Result<(), Failure> {
    let test = match &arguments.command {
        Command::Trace(arguments) => return trace::run(config, arguments),
        Command::Rules(Rules {
            command: RulesCommand::Test(test),
        }) => test,
    };
    if would_take(&config.settings, test).map_err(Failure::usage)? {
        Ok(())
    } else {
        Err(Failure::work("the call would be refused"))
    }
}

/// Whether the call would be let in.
fn would_take(settings: &Settings, test: &Test) -> Result<bool, String> {
    let text = read(&test.invite).map_err(|error| format!("{}: {error}", test.invite.display()))?;
    let (called, headers) =
        read_invite(&text).map_err(|error| format!("{}: {error}", test.invite.display()))?;
    let source = match test.source {
        Some(source) => source,
        None => via(&headers).ok_or("the topmost Via names no address: give --source")?,
    };
    let folder = &settings.storage.data_dir;
    let trunks = Trunks::look(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let configured =
        embedded::sip::trunks(&settings.sip).map_err(|problems| problems.join("; "))?;
    let trunks = trunks
        .with(&configured)
        .map_err(|problems| problems.join("; "))?;
    let (outside, _) = attributes::caller(&headers);
    let ends = Ends {
        outside,
        ours: attributes::number(&called),
        hostname: String::new(),
    };
    Ok(decide(
        settings,
        &trunks,
        &ends,
        (source, test.pin.as_deref()),
    ))
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().read_to_string(&mut text)?;
    } else {
        text = std::fs::read_to_string(path)?;
    }
    Ok(text)
}

/// The address of the topmost Via: where it was received from, if it says so.
fn via(headers: &[(String, String)]) -> Option<IpAddr> {
    let named = |name: &str| name.eq_ignore_ascii_case("via") || name.eq_ignore_ascii_case("v");
    let (_, via) = headers.iter().find(|(name, _)| named(name))?;
    let (sent_by, parameters) = via.split_once(';').unwrap_or((via, ""));
    let received = header::parameter(parameters, "received");
    let host = || {
        let host = sent_by.split_whitespace().last()?;
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        Some(host.trim_matches(['[', ']']))
    };
    received.or_else(host)?.parse().ok()
}

fn decide(
    settings: &Settings,
    trunks: &Trunks,
    ends: &Ends,
    (source, pin): (IpAddr, Option<&str>),
) -> bool {
    let call = Facts {
        from: &ends.outside,
        to: &ends.ours,
        source,
    };
    let from = if call.from.is_empty() {
        "a withheld number"
    } else {
        call.from
    };
    tell!("call from {from} to {}, source {source}", call.to);
    let sip = &settings.sip;
    let canonical = source.to_canonical();
    let mut networks = sip.allowed_addresses.0.iter();
    if !networks.any(|network| network.contains(&canonical)) {
        tell!("refused (403): the source is none of sip.allowed_addresses");
        return false;
    }
    let all = trunks.list_inbound(Filter::default(), &[]);
    let gate = trunks.gate(&call);
    let taken = match &gate {
        Gate::Trunk(trunk) => Some(trunk.sip_trunk_id.as_str()),
        Gate::NoTrunk | Gate::Refused(..) => None,
    };
    for trunk in &all {
        let why = match dispatch::fits(trunk, &call) {
            Err(mismatch) => mismatch.to_string(),
            Ok(()) if taken == Some(&trunk.sip_trunk_id) => "the call comes by it".to_owned(),
            Ok(()) => "another trunk comes first".to_owned(),
        };
        tell!("trunk {}: {why}", label(&trunk.sip_trunk_id, &trunk.name));
    }
    match &gate {
        Gate::Refused(id, mismatch) => {
            tell!("refused (403) by trunk {id}: {mismatch}");
            return false;
        }
        Gate::NoTrunk => tell!("no trunk is for this number: sip.* decides"),
        Gate::Trunk(trunk) if !trunk.auth_username.is_empty() => {
            tell!(
                "user name and password are asked for (401), as {}",
                trunk.auth_username
            );
        }
        Gate::Trunk(_) => {}
    }
    let entered = match pin {
        None => Entered::NotAsked,
        Some("") => Entered::Nothing,
        Some(pin) => Entered::Pin(pin),
    };
    let mut route = trunks.route(taken, &call, Entered::NotAsked);
    if route == Route::AskPin && entered != Entered::NotAsked {
        route = trunks.route(taken, &call, entered);
    }
    for rule in trunks.list_rules(Filter::default(), &[]) {
        let id = &rule.sip_dispatch_rule_id;
        let why = match (dispatch::concerns(&rule, taken, &call), &route) {
            (Err(elsewhere), _) => elsewhere.to_string(),
            (Ok(()), Route::Rule(chosen)) if chosen.sip_dispatch_rule_id == *id => {
                "it places the call".to_owned()
            }
            (Ok(()), Route::AskPin | Route::WrongPin) if !dispatch::pin(&rule).is_empty() => {
                "it needs its PIN".to_owned()
            }
            (Ok(()), _) => "another rule comes first".to_owned(),
        };
        tell!("rule {}: {why}", label(id, &rule.name));
    }
    match route {
        Route::AskPin => tell!("answered, and asked for a PIN (try --pin)"),
        Route::WrongPin => {
            tell!("the PIN is wrong: it is asked for again, three times in all");
            return false;
        }
        Route::Rule(rule) => {
            let placed = Placement::new(&rule, ends, "SCL_<id>");
            tell!("room {:?}, identity {:?}", placed.room, placed.identity);
        }
        Route::NoRule => {
            let prefix = sip.room_prefix.clone().unwrap_or_default();
            let own = match sip.room_mode {
                Some(RoomMode::Call) => ", or one of its own where another call is in it",
                _ => "",
            };
            tell!("room {:?} by sip.room_prefix{own}", prefix + call.to);
        }
    }
    true
}

fn label(id: &str, name: &str) -> String {
    if name.is_empty() {
        id.to_owned()
    } else {
        format!("{id} ({name})")
    }
}
