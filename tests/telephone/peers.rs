//! The page of features and the programs that they are tried with. Each row names tests of this folder, and those exist and use
//! the programs that the row says.

use std::fmt::Write as _;

use crate::book::assert_page;
use crate::examples::in_repository;

/// When the rows were last gone through, and with which versions: those of Debian 12 and of npm, in Chromium.
const CHECKED: &str = "2026-11-28";
const PEERS: [(&str, &str); 7] = [
    ("SIPp 3.6.1", "Sipp"),
    ("baresip 1.0.0", "Baresip"),
    ("Linphone 5.1.65", "Linphone"),
    ("Twinkle 1.10.2", "Twinkle"),
    ("Kamailio 5.6.3", "Kamailio"),
    ("SIP.js 0.21.2", "sip.js"),
    ("JsSIP 3.13.8", "jssip"),
];

/// A test, and whom it tries it with: S, B, L, T, K, s, j.
type Shown = (&'static str, &'static str);

const ROWS: &[(&str, &[Shown])] = &[
    (
        "calls come in, UDP",
        &[
            ("inbound::a_call_comes_into_the_room_of_its_number", "S"),
            ("inbound::a_caller_hangs_up", "B"),
            ("softphones::softphones_call_and_both_sides_hear", "LT"),
        ],
    ),
    (
        "calls come in, TCP",
        &[
            ("inbound::calls_come_by_tcp_and_tls", "S"),
            ("softphones::softphones_call_and_are_called_by_tcp", "LT"),
        ],
    ),
    (
        "calls come in, TLS",
        &[
            ("inbound::calls_come_by_tcp_and_tls", "B"),
            (
                "softphones::linphone_calls_by_tls_in_wideband_and_in_secret",
                "L",
            ),
        ],
    ),
    (
        "calls go out, UDP",
        &[
            ("outbound::a_call_rings_is_answered_and_ended_by_us", "S"),
            ("outbound::a_telephone_ends_its_call", "B"),
            (
                "softphones::softphones_are_called_put_us_on_hold_and_hear_us_again",
                "LT",
            ),
        ],
    ),
    (
        "calls go out, TCP",
        &[
            ("outbound::calls_go_by_tcp", "S"),
            ("softphones::softphones_call_and_are_called_by_tcp", "LT"),
        ],
    ),
    (
        "calls go out, TLS",
        &[("outbound::calls_go_by_tls_to_whom_we_believe", "B")],
    ),
    ("IPv6", &[("inbound::calls_come_and_go_by_ipv6", "S")]),
    (
        "password of a phone (401)",
        &[("outbound::a_telephone_that_wants_a_password_gets_it", "S")],
    ),
    (
        "password of a proxy (407), routes",
        &[("outbound::a_proxy_that_wants_a_password_gets_it", "BK")],
    ),
    (
        "password asked of a caller",
        &[
            (
                "trunks::a_call_needs_the_password_of_its_trunk_whatever_the_rules",
                "SB",
            ),
            (
                "softphones::softphones_that_know_the_password_of_a_trunk_may_call",
                "LT",
            ),
        ],
    ),
    (
        "the server registers",
        &[(
            "registrations::calls_come_by_a_pbx_at_which_the_server_is_registered",
            "K",
        )],
    ),
    (
        "phones register here",
        &[
            (
                "phones::a_softphone_registers_and_is_called_by_its_name",
                "B",
            ),
            (
                "softphones::softphones_register_and_are_called_by_their_name",
                "LT",
            ),
        ],
    ),
    (
        "SIP over WebSocket, ICE, DTLS-SRTP: registers, calls, is called, hold, DTMF",
        &[
            ("browsers::a_browser_with_sip_js_is_a_telephone", "s"),
            ("browsers::a_browser_with_jssip_is_a_telephone", "j"),
        ],
    ),
    (
        "the same over TLS, by its password alone",
        &[(
            "browsers::over_tls_a_page_calls_that_knows_a_password_and_no_other",
            "s",
        )],
    ),
    (
        "reliable ringing (PRACK), forks",
        &[
            (
                "signalling::reliable_ringing_is_acknowledged_and_a_call_may_ring_at_several_telephones",
                "S",
            ),
            ("signalling::a_caller_may_require_reliable_ringing", "S"),
        ],
    ),
    (
        "early media",
        &[("sound::sound_before_the_answer_is_heard", "S")],
    ),
    (
        "CANCEL",
        &[
            ("outbound::a_call_is_cancelled_while_it_rings", "S"),
            ("inbound::a_caller_gives_up_before_anybody_answers", "S"),
            ("softphones::softphones_do_not_take_every_call", "LT"),
        ],
    ),
    (
        "redirection (302)",
        &[
            (
                "signalling::a_redirection_is_followed_to_where_calls_may_go",
                "S",
            ),
            ("softphones::softphones_send_a_call_to_somebody_else", "LT"),
        ],
    ),
    (
        "offer in the answer",
        &[(
            "inbound::a_caller_may_leave_it_to_us_what_sound_there_is",
            "S",
        )],
    ),
    (
        "hold by re-INVITE",
        &[
            ("inbound::calls_are_put_on_hold_and_taken_up_again", "S"),
            (
                "sound::a_telephone_on_hold_is_not_heard_and_does_not_end",
                "B",
            ),
            (
                "softphones::softphones_are_called_put_us_on_hold_and_hear_us_again",
                "LT",
            ),
        ],
    ),
    (
        "OPTIONS in a call and outside",
        &[
            ("inbound::a_caller_may_ask_whether_we_are_still_there", "S"),
            (
                "signalling::a_gateway_that_does_not_answer_options_comes_last_before_any_call",
                "B",
            ),
            ("softphones::softphones_say_that_they_are_there", "LT"),
        ],
    ),
    (
        "REFER, sent",
        &[
            ("transfers::a_call_is_moved", "S"),
            ("transfers::a_telephone_calls_whom_it_is_moved_to", "B"),
            (
                "transfers::a_telephone_behind_a_proxy_that_wants_a_password_calls_whom_it_is_moved_to",
                "BK",
            ),
            ("softphones::softphones_call_whom_they_are_moved_to", "LT"),
        ],
    ),
    (
        "REFER, received",
        &[
            (
                "replaces::whom_the_other_side_asks_for_goes_on_in_its_place",
                "S",
            ),
            ("replaces::a_telephone_moves_its_call_to_another_one", "SB"),
            ("softphones::softphones_move_their_calls_to_others", "LT"),
        ],
    ),
    (
        "Replaces",
        &[(
            "replaces::somebody_else_goes_on_in_the_place_of_a_caller",
            "S",
        )],
    ),
    (
        "PCMU",
        &[
            (
                "sound::a_telephone_and_a_person_in_the_room_hear_each_other",
                "B",
            ),
            ("sound::sound_before_the_answer_is_heard", "S"),
            ("softphones::softphones_call_and_both_sides_hear", "LT"),
        ],
    ),
    (
        "PCMA",
        &[
            ("sound::they_hear_each_other_in_a_law", "B"),
            ("softphones::softphones_call_and_both_sides_hear", "LT"),
        ],
    ),
    (
        "G.722, SRTP (SDES)",
        &[
            ("sound::they_hear_each_other_in_wideband_and_in_secret", "B"),
            (
                "softphones::linphone_calls_by_tls_in_wideband_and_in_secret",
                "L",
            ),
        ],
    ),
    (
        "Opus",
        &[("softphones::softphones_call_and_both_sides_hear", "L")],
    ),
    (
        "DTMF events (RFC 4733)",
        &[
            ("sound::keys_are_told_both_ways", "B"),
            ("softphones::keys_of_softphones_are_told_both_ways", "LT"),
        ],
    ),
    (
        "DTMF by INFO",
        &[
            (
                "signalling::keys_are_sent_by_info_where_there_are_no_events",
                "S",
            ),
            ("softphones::keys_of_softphones_are_told_both_ways", "LT"),
        ],
    ),
    (
        "two phones relayed, RTP as it is",
        &[
            (
                "relay::who_comes_into_the_room_of_two_telephones_hears_both_and_neither_notices",
                "S",
            ),
            (
                "relay::two_telephones_hear_each_other_and_their_keys_while_they_are_relayed",
                "B",
            ),
            (
                "softphones::two_softphones_hear_each_other_and_their_keys_while_they_are_relayed",
                "LT",
            ),
        ],
    ),
    (
        "T.38 refused, the call goes on",
        &[("signalling::fax_is_refused_and_the_call_goes_on", "S")],
    ),
    (
        "media timeout",
        &[("sound::a_call_without_sound_ends", "S")],
    ),
];

fn page() -> String {
    let mut page = format!(
        "# Telephones and gateways that were tried\n\nWhat works with which program, as of {CHECKED}: each mark is a test of a whole call, with that program at the other \
         end. They are in [tests/telephone](../../tests/telephone), and `./test telephone::` runs them, those of `softphones` \
         only with `./test --long`. Messages that no telephone should send, the 49 of RFC 4475 among them, \
         are in `src/telephony/agent/tests/torture.rs`. Other programs and carriers may do the same in other ways: what \
         [SIP trunks](sip-trunks.md) says of carriers was read in their documentation.\n\nSoftphones know no `tel:` of a \
         transfer: Linphone refuses it with 400, Twinkle with 416. `sip.refer_scheme` `sip` has numbers named so that they \
         take them. Linphone looks in a certificate for a name, and finds no address there. Debian's Twinkle has neither TLS \
         nor SRTP nor Opus, and no G.722.\n\n| |"
    );
    for (peer, _) in PEERS {
        let _ = write!(page, " {peer} |");
    }
    let _ = writeln!(page, " tests |\n|{}", "---|".repeat(PEERS.len() + 2));
    for (feature, shown) in ROWS {
        let _ = write!(page, "| {feature} |");
        for (_, kind) in PEERS {
            let letter = kind.get(..1).unwrap_or_default();
            let tried = shown.iter().any(|(_, peers)| peers.contains(letter));
            page += if tried { " ✓ |" } else { " |" };
        }
        let names: Vec<_> = shown.iter().map(|(name, _)| format!("`{name}`")).collect();
        let _ = writeln!(page, " {} |", names.join(", "));
    }
    page
}

#[test]
fn the_page_of_telephones_names_tests_that_exist_and_use_them() {
    for (name, peers) in ROWS.iter().flat_map(|(_, shown)| *shown) {
        let (file, test) = name.split_once("::").unwrap();
        let file = in_repository(&format!("tests/telephone/{file}.rs"));
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains(&format!("async fn {test}()")), "{name}");
        for (_, kind) in PEERS {
            let claimed = peers.contains(kind.get(..1).unwrap());
            assert!(!claimed || text.contains(kind), "{name}: {kind}");
        }
    }
    assert_page("docs/guides/telephone-peers.md", &page());
}
