//! A session tells of the telephone calls in its room, and moves, ends and answers them with keys as its client says.

use super::*;
use vivavoce_seams::rooms::link::LinkEvent;
use vivavoce_seams::rooms::telephone::CallErrorKind;

async fn in_room(stage: &Stage) -> (Client, room::Link) {
    let client = stage.connect();
    client.send(&config(json!({"rtc": {"room_name": "r"}})));
    client.event("ready").await;
    let (_, link) = stage.rooms.link();
    (client, link)
}

#[actix::test]
async fn each_step_of_a_call_is_told_with_the_cause_of_its_end() {
    let stage = Stage::new();
    let (client, link) = in_room(&stage).await;
    link.calls("ann", "dialing");
    let told = client.event("sip_call").await;
    let expected = json!({
        "type": "sip_call", "sip_call_id": "SCL_ann", "participant_identity": "ann", "status": "dialing", "cause": null,
    });
    assert_eq!(told, expected);
    link.phone_is("ann", "ringing");
    assert_eq!(client.event("sip_call").await["status"], "ringing");
    link.phone_is("ann", "active");
    assert_eq!(client.event("sip_call").await["status"], "active");
    link.hangs_up("ann", "busy");
    let told = client.event("sip_call").await;
    assert_eq!(
        (&told["status"], &told["cause"]),
        (&json!("hangup"), &json!("busy"))
    );
    client.event("participant_disconnected").await;
    client.closes();
    stage.is_empty().await;
}

#[actix::test]
async fn keys_are_told_of_those_who_are_heard_and_pressed_for_the_one_who_is_meant() {
    let stage = Stage::new();
    let (client, link) = in_room(&stage).await;
    link.joins("web");
    link.calls("ann", "active");
    link.calls("bob", "active");
    let key = |identity: &str, digit: &str| LinkEvent::Dtmf {
        identity: identity.to_owned(),
        digit: digit.to_owned(),
    };
    // Somebody who presses a key for a telephone has not pressed it on one.
    link.tell(key("web", "1"));
    link.tell(key("ann", "#"));
    let told = client.event("dtmf").await;
    assert_eq!(
        (&told["digit"], &told["identity"]),
        (&json!("#"), &json!("ann"))
    );
    client.send(&json!({"type": "send_dtmf", "digits": "12"}));
    client.send(&json!({"type": "send_dtmf", "digits": "*b", "participant_identity": "bob"}));
    client.send(&json!({"type": "send_dtmf", "digits": "9", "participant_identity": "web"}));
    assert_eq!(client.event("error").await["code"], "participant_not_found");
    let pressed = [("ann", '1'), ("ann", '2'), ("bob", '*'), ("bob", 'B')];
    assert_eq!(link.keys(), pressed.map(|(who, key)| (who.to_owned(), key)));
    client.send(&json!({"type": "send_dtmf", "digits": "x"}));
    assert_eq!(client.event("error").await["code"], "invalid_message");
}

#[actix::test]
async fn a_transfer_is_told_when_its_outcome_is_known_and_nothing_waits_for_it() {
    let stage = Stage::new();
    let (client, link) = in_room(&stage).await;
    link.calls("ann", "active");
    stage.rooms.on_the_phone("r", "ann");
    stage
        .telephone
        .next_transfer(ms(4_000), Err(CallErrorKind::Rejected(603)));
    stage.telephone.next_transfer(ms(3_000), Ok(()));
    client.send(&json!({"type": "sip_transfer", "transfer_to": "+1 (212) 555-0100"}));
    client.send(&json!({"type": "send_dtmf", "digits": "x"}));
    assert_eq!(
        client.event("error").await["code"],
        "invalid_message",
        "other messages do not wait"
    );
    let told = client.event("sip_transfer_complete").await;
    let expected = json!({
        "type": "sip_transfer_complete", "transfer_to": "+12125550100", "participant_identity": "ann",
    });
    assert_eq!(told, expected);
    client.send(
        &json!({"type": "sip_transfer", "transfer_to": "1000", "participant_identity": "ann"}),
    );
    let told = client.event("sip_transfer_error").await;
    assert_eq!(
        (&told["code"], &told["message"]),
        (&json!("transfer_failed"), &json!("they would not"))
    );
    assert_eq!(stage.telephone.transfers.lock().unwrap().len(), 2);
}

#[actix::test]
async fn a_transfer_that_cannot_be_is_told_with_its_reason() {
    let stage = Stage::new();
    let (client, link) = in_room(&stage).await;
    let refused = async |transfer: Value| {
        client.send(&transfer);
        client.event("sip_transfer_error").await["code"].clone()
    };
    let nobody = json!({"type": "sip_transfer", "transfer_to": "1000"});
    assert_eq!(refused(nobody).await, "participant_not_found");
    link.joins("web");
    link.calls("ann", "active");
    stage.rooms.on_the_phone("r", "ann");
    for (to, who, code) in [
        ("nobody", "ann", "invalid_phone_number"),
        ("112", "ann", "destination_not_allowed"),
        ("+44 20 7946 0000", "ann", "destination_not_allowed"),
        ("1000", "web", "participant_not_found"),
        ("1000", "bob", "participant_not_found"),
    ] {
        let transfer =
            json!({"type": "sip_transfer", "transfer_to": to, "participant_identity": who});
        assert_eq!(refused(transfer).await, code, "{to} {who}");
    }
    assert!(stage.telephone.transfers.lock().unwrap().is_empty());
}

#[actix::test]
async fn a_call_is_ended_by_its_session() {
    let stage = Stage::new();
    let (client, link) = in_room(&stage).await;
    client.send(&json!({"type": "hangup"}));
    assert_eq!(client.event("error").await["code"], "participant_not_found");
    link.calls("ann", "active");
    stage.rooms.on_the_phone("r", "ann");
    client.send(&json!({"type": "hangup"}));
    client.send(&json!({"type": "hangup", "participant_identity": "bob"}));
    assert_eq!(client.event("error").await["code"], "participant_not_found");
    assert_eq!(*stage.telephone.ended.lock().unwrap(), ["ann"]);
}

#[actix::test]
async fn outside_of_rooms_there_is_no_telephone() {
    let stage = Stage::new();
    let client = stage.configured().await;
    for message in [
        json!({"type": "hangup"}),
        json!({"type": "send_dtmf", "digits": "1"}),
        json!({"type": "sip_transfer", "transfer_to": "1000"}),
    ] {
        client.send(&message);
        assert_eq!(
            client.event("error").await["code"],
            "rtc_not_configured",
            "{message}"
        );
    }
}

#[actix::test]
async fn a_session_without_a_token_moves_ends_and_presses_nothing() {
    let stage = Stage::new();
    let client = stage.connect_as(Access::public(), None);
    client.send(&config(json!({"rtc": {"room_name": "r"}})));
    client.event("ready").await;
    let (_, link) = stage.rooms.link();
    // Where others keep the room, a moment may pass before the session is removed.
    link.calls("ann", "active");
    stage.rooms.on_the_phone("r", "ann");
    client.send(&json!({"type": "sip_transfer", "transfer_to": "1000"}));
    let told = client.event("sip_transfer_error").await;
    assert_eq!(told["code"], "participant_not_found");
    for wish in [
        json!({"type": "hangup"}),
        json!({"type": "send_dtmf", "digits": "1", "participant_identity": "ann"}),
    ] {
        client.send(&wish);
        let refused = client.event("error").await;
        assert_eq!(refused["code"], "participant_not_found", "{wish}");
    }
    assert_eq!(stage.telephone.transfers.lock().unwrap().len(), 0);
    assert_eq!(link.keys(), []);
    // Nor does it enter where somebody is on the telephone.
    let late = stage.connect_as(Access::public(), None);
    late.send(&config(
        json!({"stream_id": "late", "rtc": {"room_name": "r"}}),
    ));
    assert_eq!(late.event("error").await["code"], "room_access_denied");
}
