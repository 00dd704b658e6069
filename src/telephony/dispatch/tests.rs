use livekit_protocol as proto;
use proto::sip_dispatch_rule::Rule;

use super::super::call::attributes::Ends;
use super::*;

fn list(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

fn trunk(id: &str, numbers: &[&str]) -> SipInboundTrunkInfo {
    SipInboundTrunkInfo {
        sip_trunk_id: id.to_owned(),
        numbers: list(numbers),
        ..Default::default()
    }
}

fn call<'a>(from: &'a str, to: &'a str) -> Facts<'a> {
    Facts {
        from,
        to,
        source: "192.0.2.7".parse().unwrap(),
    }
}

fn rule(id: &str, kind: Rule, trunks: &[&str]) -> SipDispatchRuleInfo {
    SipDispatchRuleInfo {
        sip_dispatch_rule_id: id.to_owned(),
        rule: Some(proto::SipDispatchRule { rule: Some(kind) }),
        trunk_ids: list(trunks),
        ..Default::default()
    }
}

fn direct(room: &str, pin: &str) -> Rule {
    Rule::DispatchRuleDirect(proto::SipDispatchRuleDirect {
        room_name: room.to_owned(),
        pin: pin.to_owned(),
    })
}

fn individual(prefix: &str, no_randomness: bool) -> Rule {
    Rule::DispatchRuleIndividual(proto::SipDispatchRuleIndividual {
        room_prefix: prefix.to_owned(),
        pin: String::new(),
        no_randomness,
    })
}

fn callee(prefix: &str, randomize: bool) -> Rule {
    Rule::DispatchRuleCallee(proto::SipDispatchRuleCallee {
        room_prefix: prefix.to_owned(),
        pin: String::new(),
        randomize,
    })
}

fn id(gate: Gate) -> String {
    match gate {
        Gate::NoTrunk => "none".to_owned(),
        Gate::Trunk(trunk) => trunk.sip_trunk_id,
        Gate::Refused(id, mismatch) => format!("{id}: {mismatch:?}"),
    }
}

#[test]
fn the_trunk_that_names_a_number_decides_about_it() {
    let shop = SipInboundTrunkInfo {
        allowed_numbers: list(&["+49 30 1"]),
        allowed_addresses: list(&["192.0.2.0/24"]),
        ..trunk("shop", &["+49 (30) 100"])
    };
    let any = trunk("any", &[]);
    let trunks = [any.clone(), shop.clone()];
    let gate = |call: &Facts<'_>| id(super::gate(trunks.iter(), call));
    assert_eq!(gate(&call("+49301", "4930100")), "shop");
    assert_eq!(gate(&call("+49302", "+4930100")), "shop: Calling");
    let elsewhere = Facts {
        source: "198.51.100.1".parse().unwrap(),
        ..call("+49301", "+4930100")
    };
    assert_eq!(gate(&elsewhere), "shop: Address");
    let mapped = Facts {
        source: "::ffff:192.0.2.9".parse().unwrap(),
        ..elsewhere
    };
    assert_eq!(gate(&mapped), "shop");
    // Numbers that no trunk names are those of a trunk for any.
    assert_eq!(gate(&call("+49302", "+4930200")), "any");
    let alone = [shop];
    let gate = |call: &Facts<'_>| id(super::gate(alone.iter(), call));
    assert_eq!(gate(&call("+49301", "+4930200")), "none");
    assert_eq!(gate(&call("+49301", "bob")), "none");
}

#[test]
fn of_two_trunks_for_one_number_the_one_that_lets_the_caller_in_counts() {
    let only = |id: &str, from: &str| SipInboundTrunkInfo {
        allowed_numbers: list(&[from]),
        ..trunk(id, &["+1"])
    };
    let trunks = [only("a", "+2"), only("b", "+3")];
    let gate = |from: &str| id(super::gate(trunks.iter(), &call(from, "+1")));
    assert_eq!(gate("+3"), "b");
    assert_eq!(gate("+4"), "a: Calling");
}

#[test]
fn the_most_specific_rule_counts() {
    let named = |id: &str, numbers: &[&str], callers: &[&str], kind: Rule| SipDispatchRuleInfo {
        numbers: list(numbers),
        inbound_numbers: list(callers),
        ..rule(id, kind, &[])
    };
    let rules = [
        rule("all", callee("", false), &[]),
        rule("of trunk", individual("", false), &["t"]),
        rule("of trunk, direct", direct("r", ""), &["t"]),
        named("of caller", &[], &["+5"], callee("", false)),
        named("of number", &["+9"], &[], direct("n", "")),
    ];
    let route = |trunk: Option<&str>, call: &Facts<'_>| match super::route(
        rules.iter(),
        trunk,
        call,
        Entered::NotAsked,
    ) {
        Route::Rule(rule) => rule.sip_dispatch_rule_id,
        other => format!("{other:?}"),
    };
    assert_eq!(route(Some("t"), &call("+2", "+1")), "of trunk, direct");
    assert_eq!(route(Some("u"), &call("+2", "+1")), "all");
    assert_eq!(route(Some("u"), &call("+5", "+1")), "of caller");
    assert_eq!(route(Some("u"), &call("+2", "9")), "of number");
    // Without a trunk only a rule that names the number concerns the call.
    assert_eq!(route(None, &call("+2", "+1")), "NoRule");
    assert_eq!(route(None, &call("+2", "+9")), "of number");
}

#[test]
fn a_pin_chooses_its_rule_and_no_other() {
    let rules = [
        rule("open", direct("hall", ""), &[]),
        rule("one", direct("one", "1111"), &[]),
        rule("two", direct("two", "2222"), &[]),
    ];
    let route = |entered: Entered<'_>, rules: &[SipDispatchRuleInfo]| match super::route(
        rules.iter(),
        Some("t"),
        &call("+2", "+1"),
        entered,
    ) {
        Route::Rule(rule) => rule.sip_dispatch_rule_id,
        other => format!("{other:?}"),
    };
    assert_eq!(route(Entered::NotAsked, &rules), "AskPin");
    assert_eq!(route(Entered::Pin("2222"), &rules), "two");
    assert_eq!(route(Entered::Pin("3333"), &rules), "WrongPin");
    assert_eq!(route(Entered::Nothing, &rules), "open");
    assert_eq!(route(Entered::Nothing, &rules[1..]), "WrongPin");
    assert_eq!(route(Entered::NotAsked, &rules[..1]), "open");
    assert_eq!(route(Entered::NotAsked, &[]), "NoRule");
}

#[test]
fn a_rule_names_the_room_as_livekit_does() {
    let ends = Ends {
        outside: "+4930123456".to_owned(),
        ours: "+4930100".to_owned(),
        hostname: "gw".to_owned(),
    };
    let room = |kind: Rule| Placement::new(&rule("r", kind, &[]), &ends, "CHANCE").room;
    assert_eq!(room(direct("hall", "")), "hall");
    assert_eq!(room(individual("call", false)), "call_+4930123456_CHANCE");
    assert_eq!(room(individual("", true)), "+4930123456");
    assert_eq!(room(callee("to", false)), "to_+4930100");
    assert_eq!(room(callee("", true)), "+4930100_CHANCE");
    let hidden = SipDispatchRuleInfo {
        hide_phone_number: true,
        metadata: "m".to_owned(),
        attributes: [("b".to_owned(), "2".to_owned())].into(),
        ..rule("r", individual("call", true), &[])
    };
    let placed = Placement::new(&hidden, &ends, "CHANCE");
    assert_eq!(placed.room, "call_3456");
    assert_eq!(placed.name, "Phone 3456");
    assert_eq!(placed.ends, Ends::default());
    // The same caller is the same person every time, and cannot be dialled.
    assert_eq!(placed.identity.len(), "sip_".len() + 16);
    assert_eq!(placed.identity, Placement::new(&hidden, &ends, "").identity);
    assert!(!placed.identity.contains("3456"));
    let attributes: Vec<_> = placed
        .attributes
        .iter()
        .map(|(name, value)| (&**name, &**value))
        .collect();
    assert_eq!(attributes, [("b", "2"), ("sip.ruleID", "r")]);
    let short = Ends {
        outside: "110".to_owned(),
        ..Ends::default()
    };
    assert_eq!(Placement::new(&hidden, &short, "").name, "Phone 0");
}
