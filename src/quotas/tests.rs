//! Properties of the fair-share rule, for any order of requests.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::timeout;
use vivavoce_core::party::TenantId;

use super::*;

fn tenant(id: &str) -> Party {
    Party::Tenant(TenantId::new(id).unwrap())
}

fn address(last: u8) -> Party {
    Party::Address(IpAddr::from([192, 0, 2, last]))
}

/// Takes until refused, and counts.
fn all_for(tally: &mut Tally, party: &Party) -> u64 {
    let mut got = 0;
    while tally.take(party, 1).is_ok() {
        got += 1;
    }
    got
}

#[test]
fn a_tenant_alone_has_three_quarters_and_others_find_the_rest() {
    let mut tally = Tally::new(10_000, Share::default());
    assert_eq!(all_for(&mut tally, &tenant("a")), 7_500);
    assert_eq!(all_for(&mut tally, &tenant("b")), 1_875);
    assert!(all_for(&mut tally, &tenant("c")) > 400);
    // A party that holds too much gets nothing of what is released.
    tally.release(&tenant("b"), 1_000);
    assert_eq!(tally.take(&tenant("a"), 1), Err(Why::Share("one tenant")));
    assert!(tally.take(&tenant("c"), 1).is_ok());
}

#[test]
fn tenants_who_take_in_turn_have_the_same_each_and_something_is_left() {
    let mut tally = Tally::new(1_000, Share::default());
    let parties = ["a", "b", "c"].map(tenant);
    loop {
        let took = parties.each_ref().map(|party| tally.take(party, 1).is_ok());
        if !took.contains(&true) {
            break;
        }
    }
    let held = parties.each_ref().map(|party| tally.of(party));
    assert!(
        held.iter().all(|held| (298..=302).contains(held)),
        "{held:?}"
    );
    assert!(tally.free() >= 97, "{}", tally.free());
}

#[test]
fn whoever_runs_the_server_is_bounded_by_the_whole_only() {
    let mut tally = Tally::new(100, Share::default());
    assert_eq!(all_for(&mut tally, &Party::Operator), 100);
    assert_eq!(tally.take(&tenant("a"), 1), Err(Why::Full));
}

#[test]
fn strangers_are_one_party_while_authentication_is_on() {
    let mut tally = Tally::new(1_000, Share::default().with_addresses_as_one());
    let strangers: u64 = (0..=255).map(|n| all_for(&mut tally, &address(n))).sum();
    assert!(strangers <= 750, "{strangers}");
    assert_eq!(
        tally.take(&address(7), 1),
        Err(Why::Share("all callers without a token together"))
    );
    assert!(all_for(&mut tally, &tenant("a")) > 150);
    // Among the addresses, the first does not get everything.
    let mut tally = Tally::new(1_000, Share::default().with_addresses_as_one());
    all_for(&mut tally, &address(1));
    assert!(all_for(&mut tally, &address(2)) > 100);
}

#[test]
fn a_hundred_percent_is_as_it_was_before() {
    let mut tally = Tally::new(100, Share::NONE);
    assert_eq!(all_for(&mut tally, &tenant("a")), 100);
}

#[test]
fn what_is_given_back_is_forgotten() {
    let quota = Quota::new(Kind::Rooms, 4, Share::default());
    let held: Vec<_> = [tenant("a"), address(1), Party::Operator]
        .iter()
        .map(|party| quota.take(party).unwrap())
        .collect();
    drop(held);
    assert!(quota.tally().is_empty());
}

#[test]
fn a_refusal_names_the_quota_and_the_setting() {
    let quota = Quota::new(Kind::Rooms, 4, Share::default());
    let _held: Vec<_> = (0..3).map(|_| quota.take(&tenant("a")).unwrap()).collect();
    let refused = quota.take(&tenant("a")).unwrap_err();
    let text = refused.to_string();
    assert!(refused.is_callers());
    for part in ["quota rooms", "limits.share_percent", "limits.rooms"] {
        assert!(text.contains(part), "{text}");
    }
    let _last = quota.take(&Party::Operator).unwrap();
    let full = quota.take(&tenant("b")).unwrap_err();
    assert!(!full.is_callers() && full.to_string().contains("limits.rooms"));
}

#[test]
fn a_tenant_has_no_more_than_its_cap_whoever_else_is_there() {
    let cap = NonZeroU32::new(2).map(|cap| (cap, "limits.sessions_per_tenant"));
    let quota = Quota::capped(Kind::Sessions, 100, Share::NONE, cap);
    let first = quota.take(&tenant("a")).unwrap();
    let _second = quota.take(&tenant("a")).unwrap();
    let text = quota.take(&tenant("a")).unwrap_err().to_string();
    assert!(text.contains("limits.sessions_per_tenant"), "{text}");
    let _others = [tenant("b"), Party::Operator].map(|party| quota.take(&party).unwrap());
    drop(first);
    let _third = quota.take(&tenant("a")).unwrap();
}

proptest! {
    #[test]
    fn nobody_ever_takes_the_last_of_what_there_is(
        whole in 4_u64..500,
        wishes in proptest::collection::vec((0_u8..6, any::<bool>()), 0..600),
    ) {
        let share = Share::default();
        let mut tally = Tally::new(whole, share);
        for (who, takes) in wishes {
            let party = tenant(&who.to_string());
            let (held, free) = (tally.of(&party), tally.free());
            if takes {
                if tally.take(&party, 1).is_ok() {
                    prop_assert!(tally.of(&party) <= share.most(held, free));
                } else {
                    // Only a party that holds three times of what is left is refused.
                    prop_assert!(held >= free || free == 0);
                }
            } else if held > 0 {
                tally.release(&party, 1);
            }
            // A party that holds nothing gets something.
            if tally.free() > 0 {
                prop_assert!(tally.check(&tenant("innocent"), 1).is_ok());
            }
            prop_assert!(tally.total() <= whole);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_goes_round_and_not_to_whoever_came_first() {
    let queue = FairQueue::new(1, Share::default());
    let held = queue.acquire(&tenant("greedy")).await;
    let (told, mut order) = tokio::sync::mpsc::channel(256);
    let wait = |party: Party| {
        let (queue, told) = (queue.clone(), told.clone());
        tokio::spawn(async move {
            let _place = queue.acquire(&party).await;
            told.try_send(party).unwrap();
        })
    };
    for _ in 0..100 {
        wait(tenant("greedy"));
    }
    tokio::task::yield_now().await;
    wait(tenant("innocent"));
    wait(address(1));
    tokio::task::yield_now().await;
    drop(held);
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(order.recv().await.unwrap());
    }
    assert_eq!(first, [tenant("greedy"), tenant("innocent"), address(1)]);
    for _ in 0..99 {
        assert_eq!(order.recv().await, Some(tenant("greedy")));
    }
    tokio::task::yield_now().await;
    assert!(queue.is_idle());
}

#[tokio::test(start_paused = true)]
async fn places_that_one_party_may_not_have_are_there_for_the_next_at_once() {
    let queue = FairQueue::new(64, Share::default());
    let mut held = Vec::new();
    while let Ok(place) = timeout(Duration::ZERO, queue.acquire(&tenant("greedy"))).await {
        held.push(place);
    }
    assert_eq!(held.len(), 48);
    let innocent = timeout(Duration::ZERO, queue.acquire(&tenant("innocent"))).await;
    assert!(innocent.is_ok());
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_up_holds_nothing_up_and_is_forgotten() {
    let queue = FairQueue::new(1, Share::default());
    let a = tenant("a");
    let held = queue.acquire(&a).await;
    for _ in 0..1_000 {
        let waited = timeout(Duration::from_millis(1), queue.acquire(&a));
        assert!(waited.await.is_err());
    }
    assert!(!queue.is_waited_for());
    // A waiter that is granted a slot and goes away at the same moment.
    let mut waiting = Box::pin(async { queue.acquire(&tenant("b")).await });
    assert!(futures_util::poll!(&mut waiting).is_pending());
    drop(held);
    drop(waiting);
    assert!(queue.is_idle());
}

mod page {
    //! `docs/quotas.md` says what the code does.

    use super::super::*;
    use vivavoce_config::TABLE as SETTINGS;

    const PAGE: &str = include_str!("../../docs/quotas.md");

    /// The rows of the page: name, whole, default.
    fn rows() -> Vec<[String; 3]> {
        let rows = PAGE.lines().filter(|line| line.starts_with("| `"));
        rows.map(|line| {
            let cells = line.trim_matches('|').split('|');
            let mut cells = cells.map(|cell| cell.trim().replace('`', ""));
            std::array::from_fn(|_| cells.next().unwrap_or_default())
        })
        .collect()
    }

    #[test]
    fn the_page_has_a_row_for_each_quota_and_no_other() {
        let said: Vec<_> = rows()
            .into_iter()
            .map(|[name, whole, _]| (name, whole))
            .collect();
        let known: Vec<_> = TABLE
            .iter()
            .map(|row| (row.name.to_owned(), row.whole.to_owned()))
            .collect();
        assert_eq!(said, known);
    }

    #[test]
    fn the_page_says_the_defaults_of_the_settings() {
        let default = |key: &str| {
            let setting = SETTINGS.iter().find(|setting| setting.key == key);
            setting.map(|setting| setting.default)
        };
        for [name, whole, said] in rows() {
            if let Some(default) = default(&whole) {
                assert_eq!(said.replace(',', ""), default, "{name}");
            } else {
                assert!(!whole.contains('.'), "{whole} is no setting");
            }
        }
        let share = default("limits.share_percent").unwrap();
        assert!(PAGE.contains(&format!("`limits.share_percent` ({share})")));
    }
}
