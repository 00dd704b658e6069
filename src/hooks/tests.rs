//! A change of hooks is stored, or refused.

use std::fs;

use super::*;

fn request(host: &str) -> RequestedHook {
    RequestedHook {
        host: host.to_owned(),
        url: "https://hooks.example/".to_owned(),
        auth_id: None,
    }
}

fn names(hooks: &[Hook]) -> Vec<&str> {
    hooks.iter().map(|hook| hook.host.as_str()).collect()
}

#[tokio::test]
async fn what_was_added_is_found_by_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let hooks = || Hooks::in_folder(Configured::default(), folder.path().to_owned());
    let access = Access::anonymous();
    let first = hooks();
    first.open().await;
    let seen = first
        .put(&access, vec![request("B.example"), request("a.example")])
        .await;
    assert_eq!(names(&seen.unwrap()), ["a.example", "b.example"]);
    let second = hooks();
    second.open().await;
    assert!(
        second
            .find(&Host::parse("b.example").unwrap(), None)
            .is_some()
    );
    let seen = second.remove(&access, &["b.example".to_owned()]).await;
    assert_eq!(names(&seen.unwrap()), ["a.example"]);
    assert_eq!(names(&hooks().shown(&access).await.unwrap()), ["a.example"]);
}

#[tokio::test]
async fn what_cannot_be_written_is_refused_and_does_not_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    fs::write(&path, "no folder").unwrap();
    let hooks = Hooks::in_folder(Configured::default(), path.clone());
    let access = Access::anonymous();
    hooks.open().await;
    let refused = hooks.put(&access, vec![request("a.example")]).await;
    assert!(matches!(refused, Err(HookError::Storage(_))));
    let refused = hooks.shown(&access).await;
    assert!(matches!(refused, Err(HookError::Storage(_))), "{refused:?}");
    fs::remove_file(&path).unwrap();
    assert!(hooks.shown(&access).await.unwrap().is_empty());
    assert!(hooks.put(&access, vec![request("a.example")]).await.is_ok());
}

#[tokio::test]
async fn changes_at_once_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let hooks = Hooks::in_folder(Configured::default(), folder.path().to_owned());
    let changes = (0..20).map(|index| {
        let hooks = hooks.clone();
        async move {
            let requests = vec![request(&format!("h{index}.example"))];
            hooks.put(&Access::anonymous(), requests).await
        }
    });
    for made in futures_util::future::join_all(changes).await {
        made.unwrap();
    }
    assert_eq!(hooks.shown(&Access::anonymous()).await.unwrap().len(), 20);
}

#[tokio::test]
async fn changes_at_once_are_one_write_and_each_is_answered_for_itself() {
    let folder = tempfile::tempdir().unwrap();
    let hooks = Hooks::in_folder(Configured::default(), folder.path().to_owned());
    let changes = (0..100).map(|index| {
        let hooks = hooks.clone();
        async move {
            let access = Access::anonymous();
            match index {
                // Each of the others is refused or removed again.
                0..=49 => {
                    let requests = vec![request(&format!("h{index}.example"))];
                    hooks.put(&access, requests).await
                }
                50..=89 => {
                    let host = format!("h{}.example", index - 50);
                    hooks.remove(&access, &[host]).await
                }
                _ => hooks.put(&access, vec![request("no host")]).await,
            }
        }
    });
    let outcomes = futures_util::future::join_all(changes).await;
    for (index, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(_) => assert!(index < 90),
            Err(error) => assert!(index >= 90 && matches!(error, HookError::Invalid(_))),
        }
    }
    // The first, and those that arrived meanwhile.
    let writes = hooks.0.store.lock().await.writes;
    assert!((1..=2).contains(&writes), "{writes}");
    let again = Hooks::in_folder(Configured::default(), folder.path().to_owned());
    assert_eq!(again.shown(&Access::anonymous()).await.unwrap().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn one_change_after_the_other_writes_no_more_than_so_many_bytes_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let hooks = Hooks::in_folder(Configured::default(), folder.path().to_owned());
    let access = Access::anonymous();
    let url = format!("https://hooks.example/{}", "x".repeat(1_900));
    let many = (0..1_000).map(|index| RequestedHook {
        url: url.clone(),
        ..request(&format!("h{index}.example"))
    });
    hooks.put(&access, many.collect()).await.unwrap();
    let begun = Instant::now();
    for _ in 0..10 {
        hooks
            .put(&access, vec![request("again.example")])
            .await
            .unwrap();
        let removed = hooks.remove(&access, &["again.example".to_owned()]).await;
        assert_eq!(removed.unwrap().len(), 1_000);
    }
    let bytes = fs::metadata(folder.path().join("hooks.json"))
        .unwrap()
        .len();
    let written = (20 * bytes) as f64 / begun.elapsed().as_secs_f64();
    assert!(written < 1.1 * BYTES_PER_SECOND, "{written}");
}
