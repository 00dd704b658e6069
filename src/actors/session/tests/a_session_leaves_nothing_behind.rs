//! "5 s after its socket nothing of a session is left, however it ended."

use super::*;

#[actix::test]
async fn however_it_ends_its_children_end_and_its_name_is_free() {
    let ends: [fn(&Client); 3] = [Client::closes, Client::breaks, |client| {
        client.reads(false);
        client.breaks();
    }];
    tokio::time::pause();
    for end in ends {
        let stage = Stage::in_paused_time(LEAD);
        stage
            .synthesiser
            .says([Way::Slow(ms(100), Duration::from_secs(10))]);
        let client = stage.configured().await;
        client.send(&speak("A long sentence that is not ready yet"));
        client.speaks(ms(600)).await;
        assert_eq!((stage.recogniser.live(), stage.synthesiser.live()), (1, 1));
        assert_eq!(stage.names().await, ["s"]);
        let begun = client.now();
        end(&client);
        stage.is_empty().await;
        assert!(client.now() - begun <= Duration::from_secs(5));
    }
}

#[actix::test]
async fn a_session_that_ends_in_the_middle_of_its_config_leaves_nothing() {
    let by_client: fn(&Stage, &Client) = |_, client| client.closes();
    let by_server: fn(&Stage, &Client) = |stage, _| stage.services.closing.cancel();
    tokio::time::pause();
    for end in [by_client, by_server] {
        for opening in [Opening::Takes(Duration::from_secs(3)), Opening::Never] {
            let stage = Stage::in_paused_time(LEAD);
            stage.recogniser.opens([opening]);
            let client = stage.connect();
            client.send(&config(json!({})));
            client.speaks(ms(500)).await;
            end(&stage, &client);
            stage.is_empty().await;
            assert_eq!(client.events_of("ready").len(), 0);
        }
    }
}

#[actix::test]
async fn a_session_that_ends_while_a_second_config_opens_tells_the_last_words_of_the_first() {
    let stage = Stage::new();
    let client = stage.configured().await;
    stage
        .recogniser
        .opens([Opening::Takes(Duration::from_secs(1))]);
    client.speaks(ms(400)).await;
    stage
        .recogniser
        .stream(0)
        .await
        .ends_with(said("Last words."));
    client.send(&config(json!({"stt_config": {"language": "de-DE"}})));
    sleep(ms(100)).await;
    stage.end("s").await;
    assert_eq!(
        client.event("stt_result").await["transcript"],
        "Last words."
    );
    assert_eq!(client.closed().await, 1000);
    stage.is_empty().await;
    assert_eq!(client.events_of("ready").len(), 1);
}
