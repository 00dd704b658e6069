//! Hooks are kept, or a change is refused.

use std::fs;

use super::*;

fn wish(host: &str) -> Wish {
    Wish {
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
        .put(&access, vec![wish("B.example"), wish("a.example")])
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
    let refused = hooks.put(&access, vec![wish("a.example")]).await;
    assert!(matches!(refused, Err(HookError::Storage(_))));
    let refused = hooks.shown(&access).await;
    assert!(matches!(refused, Err(HookError::Storage(_))), "{refused:?}");
    fs::remove_file(&path).unwrap();
    assert!(hooks.shown(&access).await.unwrap().is_empty());
    assert!(hooks.put(&access, vec![wish("a.example")]).await.is_ok());
}

#[tokio::test]
async fn changes_at_once_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let hooks = Hooks::in_folder(Configured::default(), folder.path().to_owned());
    let changes = (0..20).map(|index| {
        let hooks = hooks.clone();
        async move {
            let wishes = vec![wish(&format!("h{index}.example"))];
            hooks.put(&Access::anonymous(), wishes).await
        }
    });
    for made in futures_util::future::join_all(changes).await {
        made.unwrap();
    }
    assert_eq!(hooks.shown(&Access::anonymous()).await.unwrap().len(), 20);
}
