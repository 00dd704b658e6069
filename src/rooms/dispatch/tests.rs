//! Workers, rooms and jobs in virtual time.

use std::time::Duration;

use livekit_protocol as proto;
use proto::server_message::Message as Told;
use proto::worker_message::Message as Said;
use proto::{JobStatus, JobType, WorkerStatus};

use super::*;
use vivavoce_auth::Principal;
use vivavoce_core::party::TenantId;
use vivavoce_quotas::Party;

struct Bench {
    dispatcher: Dispatcher,
    now: Now,
    told: Vec<(WorkerId, Told)>,
    closed: Vec<WorkerId>,
}

fn tenant(name: &str) -> Principal {
    Principal::Tenant(TenantId::new(name).unwrap())
}

fn room(name: &str) -> proto::Room {
    proto::Room {
        name: name.to_owned(),
        sid: format!("RM_{name}"),
        ..Default::default()
    }
}

fn person(identity: &str, sid: &str) -> proto::ParticipantInfo {
    proto::ParticipantInfo {
        identity: identity.to_owned(),
        sid: sid.to_owned(),
        ..Default::default()
    }
}

fn asked(agent_name: &str) -> proto::RoomAgentDispatch {
    proto::RoomAgentDispatch {
        agent_name: agent_name.to_owned(),
        metadata: "about it".to_owned(),
        ..Default::default()
    }
}

fn registration(agent_name: &str, kind: JobType) -> proto::RegisterWorkerRequest {
    proto::RegisterWorkerRequest {
        r#type: kind as i32,
        agent_name: agent_name.to_owned(),
        ..Default::default()
    }
}

impl Bench {
    fn new() -> Self {
        let keys = Keys::new([("key", "secret")]);
        let info = proto::ServerInfo::default();
        Self {
            dispatcher: Dispatcher::new(keys, info, Share::default(), 7),
            now: Now {
                instant: Instant::now(),
                unix_ms: 1_800_000_000_000,
            },
            told: Vec::new(),
            closed: Vec::new(),
        }
    }

    fn connect(&mut self, number: u64, principal: Principal) -> WorkerId {
        let id = WorkerId(number);
        let credentials = WorkerCredentials {
            party: principal.party(None),
            principal,
            api_key: "key".to_owned(),
        };
        self.dispatcher
            .connected(id, credentials, self.now)
            .unwrap();
        id
    }

    fn worker_of(&mut self, number: u64, principal: Principal, agent_name: &str) -> WorkerId {
        let id = self.connect(number, principal);
        self.say(
            id,
            Said::Register(registration(agent_name, JobType::JtRoom)),
        );
        let registered = self.next(id);
        assert!(matches!(registered, Told::Register(_)), "{registered:?}");
        id
    }

    fn worker(&mut self, number: u64) -> WorkerId {
        self.worker_of(number, Principal::Operator, "")
    }

    fn say(&mut self, id: WorkerId, message: Said) {
        let message = proto::WorkerMessage {
            message: Some(message),
        };
        let registered = self.dispatcher.said(id, message, self.now);
        if let Some(kind) = registered {
            for name in self.dispatcher.rooms_for(id) {
                self.dispatcher
                    .launch(&room(&name), kind, None, None, self.now);
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        let out = self.dispatcher.take_outputs();
        for (id, message) in out.messages {
            self.told.push((id, message.message.unwrap()));
        }
        self.closed.extend(out.closes);
    }

    /// The next message to a worker.
    fn next(&mut self, id: WorkerId) -> Told {
        let at = self.told.iter().position(|(to, _)| *to == id);
        self.told
            .remove(at.unwrap_or_else(|| panic!("{id:?} was told nothing")))
            .1
    }

    fn told_anybody(&self) -> bool {
        !self.told.is_empty()
    }

    /// The job that a worker is asked to take.
    fn offered(&mut self, id: WorkerId) -> proto::AvailabilityRequest {
        match self.next(id) {
            Told::Availability(request) => request,
            other => panic!("{other:?}"),
        }
    }

    fn accept(&mut self, id: WorkerId) -> (proto::Job, Claims) {
        let job = self.offered(id).job.unwrap();
        self.answer(id, &job.id, true);
        self.assigned(id)
    }

    fn assigned(&mut self, id: WorkerId) -> (proto::Job, Claims) {
        match self.next(id) {
            Told::Assignment(assignment) => {
                let keys = Keys::new([("key", "secret")]);
                let now = self.now.unix_s();
                let claims = token::verify(&assignment.token, &keys, now).unwrap();
                (assignment.job.unwrap(), claims)
            }
            other => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, id: WorkerId, job: &str, available: bool) {
        let answer = proto::AvailabilityResponse {
            job_id: job.to_owned(),
            available,
            ..Default::default()
        };
        self.say(id, Said::Availability(answer));
    }

    fn update(&mut self, id: WorkerId, job: &str, status: JobStatus) {
        let update = proto::UpdateJobStatus {
            job_id: job.to_owned(),
            status: status as i32,
            ..Default::default()
        };
        self.say(id, Said::UpdateJob(update));
    }

    fn status(&mut self, id: WorkerId, status: WorkerStatus, load: f32) {
        let update = proto::UpdateWorkerStatus {
            status: Some(status as i32),
            load,
            ..Default::default()
        };
        self.say(id, Said::UpdateWorker(update));
    }

    fn open(&mut self, name: &str, owner: Owner, agents: &[&str]) {
        let agents = agents.iter().map(|name| asked(name)).collect();
        self.dispatcher.room_created(name, owner, agents, self.now);
        self.dispatcher.open_room(&room(name), self.now);
        self.settle();
    }

    fn join(&mut self, name: &str, claims: &Claims) {
        self.dispatcher.joined(name, claims.identity(), self.now);
        self.settle();
    }

    fn leave(&mut self, name: &str, identity: &str) {
        self.dispatcher.left(name, identity, self.now);
        self.settle();
    }

    fn lose(&mut self, id: WorkerId) {
        self.dispatcher.gone(id, self.now);
        self.settle();
    }

    fn pass(&mut self, time: Duration) {
        self.now.instant += time;
        self.now.unix_ms += i64::try_from(time.as_millis()).unwrap();
        self.dispatcher.tick(self.now);
        self.settle();
    }

    /// The states of the jobs that there are.
    fn states(&self) -> Vec<&'static str> {
        let jobs = self.dispatcher.jobs_for(&Access::anonymous());
        jobs.iter().map(|job| job.state).collect()
    }

    /// The jobs of a room's dispatches.
    fn dispatched(&self, name: &str) -> Vec<proto::Job> {
        let all = self.dispatcher.list_dispatches(name, "").unwrap();
        let jobs = all.into_iter().flat_map(|one| one.state.unwrap().jobs);
        jobs.collect()
    }
}

#[test]
fn a_room_without_named_agents_gets_the_unnamed_one_once() {
    let mut bench = Bench::new();
    let worker = bench.worker(1);
    bench.open("kitchen", Owner::Nobody, &[]);
    let (job, claims) = bench.accept(worker);
    assert_eq!(job.room.unwrap().name, "kitchen");
    assert_eq!(claims.identity(), format!("agent-{}", job.id));
    assert_eq!(
        (claims.kind.as_str(), claims.video.room.as_str()),
        ("agent", "kitchen")
    );
    assert!(claims.video.room_join && claims.permission().can_publish);
    assert!(claims.permission().can_update_metadata);
    assert_eq!(claims.agent_job.as_deref(), Some(job.id.as_str()));
    assert_eq!(bench.states(), ["assigned"]);
    bench.join("kitchen", &claims);
    assert_eq!(bench.states(), ["running"]);
    // Neither another worker nor the same one brings a second.
    bench.worker(2);
    assert!(!bench.told_anybody());
}

#[test]
fn named_agents_are_dispatched_where_they_are_asked_for_and_nowhere_else() {
    let mut bench = Bench::new();
    let unnamed = bench.worker(1);
    let cook = bench.worker_of(2, Principal::Operator, "cook");
    bench.open("kitchen", Owner::Nobody, &["cook"]);
    let (job, claims) = bench.accept(cook);
    assert_eq!(job.metadata, "about it");
    assert_eq!(claims.attributes["lk.agent_name"], "cook");
    assert_eq!(claims.attributes["lk.agent.name"], "cook");
    bench.open("cellar", Owner::Nobody, &[]);
    assert_eq!(bench.accept(unnamed).0.room.unwrap().name, "cellar");
    let created = bench
        .dispatcher
        .create_dispatch(&room("cellar"), asked("cook"), bench.now);
    let created = created.unwrap();
    bench.settle();
    let (job, _) = bench.accept(cook);
    assert_eq!(
        (job.dispatch_id, job.agent_name),
        (created.id, "cook".to_owned())
    );
    assert!(!bench.told_anybody());
}

#[test]
fn a_worker_that_registers_in_time_gets_the_job_and_a_late_one_does_not() {
    let mut bench = Bench::new();
    bench.open("kitchen", Owner::Nobody, &[]);
    bench.pass(WAITING - Duration::from_secs(1));
    let worker = bench.worker(1);
    assert_eq!(bench.accept(worker).0.room.unwrap().name, "kitchen");
    let mut bench = Bench::new();
    bench.open("kitchen", Owner::Nobody, &[]);
    bench.pass(WAITING);
    bench.worker(1);
    assert!(!bench.told_anybody());
}

#[test]
fn whoever_declines_is_asked_again_less_and_less_often_and_at_once_when_it_was_busy() {
    let mut bench = Bench::new();
    let (first, second) = (bench.worker(1), bench.worker(2));
    bench.open("kitchen", Owner::Nobody, &[]);
    let job = bench.offered(first).job.unwrap();
    bench.answer(first, &job.id, false);
    assert_eq!(bench.offered(second).job.unwrap().id, job.id);
    bench.answer(second, &job.id, false);
    assert_eq!(bench.states(), ["waiting"]);
    bench.status(first, WorkerStatus::WsAvailable, 0.1);
    assert!(!bench.told_anybody());
    bench.lose(second);
    let mut asked = 0;
    for _ in 0..59 {
        bench.pass(Duration::from_secs(1));
        if bench.told_anybody() {
            asked += 1;
            bench.offered(first);
            bench.answer(first, &job.id, false);
        }
    }
    assert!((4..8).contains(&asked), "{asked}");
    assert_eq!(bench.states(), ["waiting"]);
    bench.status(first, WorkerStatus::WsFull, 0.9);
    bench.status(first, WorkerStatus::WsAvailable, 0.1);
    assert_eq!(bench.accept(first).0.id, job.id);
}

#[test]
fn a_job_that_nobody_takes_ends() {
    let mut bench = Bench::new();
    let worker = bench.worker(1);
    bench.open("kitchen", Owner::Nobody, &[]);
    let job = bench.offered(worker).job.unwrap();
    bench.answer(worker, &job.id, false);
    bench.pass(WAITING);
    assert!(bench.states().is_empty());
    let [ended] = &bench.dispatched("kitchen")[..] else {
        panic!("not one job")
    };
    let state = ended.state.as_ref().unwrap();
    assert_eq!(state.status(), JobStatus::JsFailed);
    assert!(state.error.contains("no worker"), "{}", state.error);
}

#[test]
fn a_worker_that_does_not_answer_loses_the_job_to_another() {
    let mut bench = Bench::new();
    let (silent, other) = (bench.worker(1), bench.worker(2));
    bench.open("kitchen", Owner::Nobody, &[]);
    let job = bench.offered(silent).job.unwrap();
    bench.pass(ANSWER);
    let (again, _) = bench.accept(other);
    assert_eq!(again.id, job.id);
    // Too late.
    bench.answer(silent, &job.id, true);
    assert!(!bench.told_anybody());
}

#[test]
fn a_worker_lost_before_the_job_begins_is_replaced_and_one_that_never_begins_too() {
    let mut bench = Bench::new();
    let (first, second) = (bench.worker(1), bench.worker(2));
    bench.open("kitchen", Owner::Nobody, &[]);
    let (job, _) = bench.accept(first);
    bench.lose(first);
    let request = bench.offered(second);
    assert!(request.resuming);
    assert_eq!(request.job.unwrap().id, job.id);
    bench.answer(second, &job.id, true);
    let _assigned = bench.assigned(second);
    let third = bench.worker(3);
    bench.pass(STARTING);
    let told = bench.next(second);
    assert!(matches!(told, Told::Termination(_)), "{told:?}");
    let (_, claims) = bench.accept(third);
    bench.join("kitchen", &claims);
    assert_eq!(bench.states(), ["running"]);
    // A worker that says that the job runs may take its time.
    bench.open("cellar", Owner::Nobody, &[]);
    let (slow, _) = bench.accept(second);
    bench.update(second, &slow.id, JobStatus::JsRunning);
    bench.pass(STARTING * 2);
    assert_eq!(bench.states(), ["running", "assigned"]);
}

#[test]
fn an_agent_stays_without_its_worker_and_is_replaced_when_it_leaves() {
    let mut bench = Bench::new();
    let first = bench.worker(1);
    bench.open("kitchen", Owner::Nobody, &[]);
    let (job, claims) = bench.accept(first);
    bench.join("kitchen", &claims);
    bench.lose(first);
    let second = bench.worker(2);
    assert!(!bench.told_anybody());
    bench.leave("kitchen", claims.identity());
    let (again, claims) = bench.accept(second);
    assert_eq!(again.id, job.id);
    bench.join("kitchen", &claims);
    assert_eq!(bench.states(), ["running"]);
}

#[test]
fn a_worker_that_comes_back_has_its_jobs_again() {
    let mut bench = Bench::new();
    let before = bench.worker(1);
    bench.open("kitchen", Owner::Nobody, &[]);
    let (job, claims) = bench.accept(before);
    bench.join("kitchen", &claims);
    bench.lose(before);
    let after = bench.worker(2);
    let migrate = |job: &proto::Job| {
        Said::MigrateJob(proto::MigrateJobRequest {
            job_ids: vec![job.id.clone(), "AJ_nothing".to_owned()],
        })
    };
    bench.say(after, migrate(&job));
    let jobs = bench.dispatcher.jobs_for(&Access::anonymous());
    assert!(jobs[0].worker_id.is_some());
    // Who claims a job that another one has is told to leave it.
    let thief = bench.worker(3);
    bench.say(thief, migrate(&job));
    let told = bench.next(thief);
    assert!(matches!(told, Told::Termination(_)), "{told:?}");
    bench.leave("kitchen", claims.identity());
    bench.update(after, &job.id, JobStatus::JsSuccess);
    assert!(bench.states().is_empty());
}

#[test]
fn a_worker_says_how_its_job_ended_and_an_agent_that_leaves_without_a_word_failed() {
    let mut bench = Bench::new();
    let worker = bench.worker(1);
    for (name, status) in [
        ("a", Some(JobStatus::JsSuccess)),
        ("b", Some(JobStatus::JsFailed)),
        ("c", None),
    ] {
        bench.open(name, Owner::Nobody, &[]);
        let (job, claims) = bench.accept(worker);
        bench.join(name, &claims);
        bench.leave(name, claims.identity());
        match status {
            Some(status) => bench.update(worker, &job.id, status),
            None => bench.pass(LEAVING),
        }
        let state = bench.dispatched(name).pop().unwrap().state.unwrap();
        assert_eq!(
            state.status(),
            status.unwrap_or(JobStatus::JsFailed),
            "{name}"
        );
        assert!(state.ended_at >= state.started_at && state.started_at > 0);
    }
    let told = bench.next(worker);
    assert!(matches!(told, Told::Termination(_)), "{told:?}");
    assert!(bench.states().is_empty());
    assert_eq!(
        bench.dispatcher.workers_for(&Access::anonymous())[0].jobs,
        0
    );
}

#[test]
fn an_agent_that_reconnects_goes_on() {
    let mut bench = Bench::new();
    let worker = bench.worker(1);
    bench.open("kitchen", Owner::Nobody, &[]);
    let (_, claims) = bench.accept(worker);
    bench.join("kitchen", &claims);
    bench.leave("kitchen", claims.identity());
    bench.pass(LEAVING / 2);
    bench.join("kitchen", &claims);
    bench.pass(LEAVING * 2);
    assert_eq!(bench.states(), ["running"]);
    assert!(!bench.told_anybody());
}

#[test]
fn jobs_end_with_their_room_and_with_their_dispatch() {
    let mut bench = Bench::new();
    let worker = bench.worker(1);
    bench.open("kitchen", Owner::Nobody, &[]);
    let (job, claims) = bench.accept(worker);
    bench.join("kitchen", &claims);
    let terminated = |told: Told| match told {
        Told::Termination(termination) => termination.job_id,
        other => panic!("{other:?}"),
    };
    let refused = bench
        .dispatcher
        .delete_dispatch("kitchen", "AD_nothing", bench.now);
    assert_eq!(refused.unwrap_err(), OperationError::NoDispatch);
    let deleted = bench
        .dispatcher
        .delete_dispatch("kitchen", &job.dispatch_id, bench.now);
    assert!(deleted.unwrap().state.unwrap().deleted_at > 0);
    bench.settle();
    assert_eq!(terminated(bench.next(worker)), job.id);
    assert!(
        bench
            .dispatcher
            .list_dispatches("kitchen", "")
            .unwrap()
            .is_empty()
    );
    bench.open("cellar", Owner::Nobody, &[]);
    let (job, claims) = bench.accept(worker);
    bench.join("cellar", &claims);
    bench.dispatcher.room_finished("cellar", bench.now);
    bench.settle();
    assert_eq!(terminated(bench.next(worker)), job.id);
    let gone = bench.dispatcher.list_dispatches("cellar", "");
    assert_eq!(gone.unwrap_err(), OperationError::NoRoom);
    assert!(bench.states().is_empty());
}

#[test]
fn two_workers_share_the_jobs_by_their_load_and_between_two_reports_by_number() {
    let mut bench = Bench::new();
    let (first, second) = (bench.worker(1), bench.worker(2));
    let share = |bench: &mut Bench, from: usize| {
        for room in from..from + 10 {
            bench.open(&room.to_string(), Owner::Nobody, &[]);
        }
        let of_first = bench.told.iter().filter(|(to, _)| *to == first).count();
        let all = bench.told.len();
        bench.told.clear();
        (of_first, all)
    };
    assert_eq!(share(&mut bench, 0), (5, 10));
    bench.status(first, WorkerStatus::WsAvailable, 0.9);
    bench.status(second, WorkerStatus::WsAvailable, 0.1);
    assert_eq!(share(&mut bench, 10), (0, 10));
    bench.status(second, WorkerStatus::WsFull, 1.0);
    assert_eq!(share(&mut bench, 20), (10, 10));
}

#[test]
fn a_draining_worker_gets_no_more_jobs_and_an_old_status_does_not_count() {
    let mut bench = Bench::new();
    let worker = bench.worker(1);
    let status = |draining, seq| {
        Said::UpdateWorker(proto::UpdateWorkerStatus {
            status: Some(WorkerStatus::WsAvailable as i32),
            draining,
            seq,
            load: f32::NAN,
            ..Default::default()
        })
    };
    bench.say(worker, status(true, 2));
    bench.say(worker, status(false, 1));
    bench.open("kitchen", Owner::Nobody, &[]);
    assert!(!bench.told_anybody());
    assert!(bench.dispatcher.workers_for(&Access::anonymous())[0].draining);
    bench.say(worker, status(false, 3));
    assert_eq!(bench.accept(worker).0.room.unwrap().name, "kitchen");
}

#[test]
fn a_tenants_workers_have_the_jobs_of_its_rooms_and_no_others() {
    let mut bench = Bench::new();
    let operators = bench.worker(1);
    let of_a = bench.worker_of(2, tenant("a"), "");
    let owner = |name: &str| Owner::Tenant(TenantId::new(name).unwrap());
    bench.open("a's", owner("a"), &[]);
    let (_, claims) = bench.accept(of_a);
    assert_eq!(claims.principal(), tenant("a"));
    for (name, owner) in [
        ("b's", owner("b")),
        ("nobody's", Owner::Nobody),
        ("operator's", Owner::Operator),
    ] {
        bench.open(name, owner, &[]);
        let (job, claims) = bench.accept(operators);
        assert_eq!(job.room.unwrap().name, name);
        assert_eq!(claims.principal(), Principal::Operator);
    }
    let seen = |access: &Access| {
        let workers = bench.dispatcher.workers_for(access).len();
        (workers, bench.dispatcher.jobs_for(access).len())
    };
    assert_eq!(seen(&Access::of_tenant("a")), (1, 1));
    assert_eq!(seen(&Access::of_tenant("b")), (0, 1));
    assert_eq!(seen(&Access::anonymous()), (2, 4));
    bench.lose(operators);
    assert!(!bench.told_anybody());
}

#[test]
fn publisher_and_participant_workers_have_a_job_for_each() {
    for kind in [JobType::JtPublisher, JobType::JtParticipant] {
        let mut bench = Bench::new();
        let worker = bench.connect(1, Principal::Operator);
        bench.say(worker, Said::Register(registration("", kind)));
        bench.next(worker);
        bench.open("kitchen", Owner::Nobody, &[]);
        assert!(!bench.told_anybody());
        let launch = |bench: &mut Bench, identity: &str, sid: &str| {
            let info = person(identity, sid);
            bench
                .dispatcher
                .launch(&room("kitchen"), kind, Some(&info), None, bench.now);
            bench.settle();
        };
        launch(&mut bench, "ann", "PA_1");
        launch(&mut bench, "bob", "PA_2");
        launch(&mut bench, "ann", "PA_1");
        let anns = bench.offered(worker).job.unwrap();
        let bobs = bench.offered(worker).job.unwrap();
        assert_eq!(bobs.participant.unwrap().identity, "bob");
        assert!(!bench.told_anybody());
        bench.answer(worker, &anns.id, true);
        let (job, claims) = bench.assigned(worker);
        let participant = job.participant.unwrap().identity;
        assert_eq!((participant.as_str(), job.r#type), ("ann", kind as i32));
        // Nobody works for who has left; who comes back is somebody new.
        bench.leave("kitchen", "bob");
        bench.join("kitchen", &claims);
        bench.update(worker, &job.id, JobStatus::JsSuccess);
        launch(&mut bench, "ann", "PA_1");
        assert!(bench.states().is_empty());
        launch(&mut bench, "ann", "PA_3");
        assert_eq!(bench.states(), ["offered"]);
    }
}

#[test]
fn each_namespace_of_workers_has_its_job() {
    let mut bench = Bench::new();
    let mut ids = Vec::new();
    for (number, namespace) in [(1, "x"), (2, "y"), (3, "y")] {
        let id = bench.connect(number, Principal::Operator);
        let mut request = registration("", JobType::JtRoom);
        request.namespace = Some(namespace.to_owned());
        bench.say(id, Said::Register(request));
        bench.next(id);
        ids.push(id);
    }
    bench.open("kitchen", Owner::Nobody, &[]);
    assert_eq!(bench.states(), ["offered", "offered"]);
    bench.accept(ids[0]);
    bench.accept(ids[1]);
}

#[test]
fn agents_may_do_in_rooms_what_their_worker_registered_for() {
    let mut bench = Bench::new();
    let worker = bench.connect(1, Principal::Operator);
    let mut request = registration("", JobType::JtRoom);
    request.allowed_permissions = Some(proto::ParticipantPermission {
        can_subscribe: true,
        hidden: true,
        ..Default::default()
    });
    bench.say(worker, Said::Register(request));
    bench.next(worker);
    bench.open("kitchen", Owner::Nobody, &[]);
    let (_, claims) = bench.accept(worker);
    let may = claims.permission();
    assert!(may.can_subscribe && may.hidden);
    assert!(!may.can_publish && !may.can_publish_data && !may.can_update_metadata);
}

#[test]
fn a_room_on_trial_has_no_agents_before_it_is_opened() {
    let mut bench = Bench::new();
    let worker = bench.worker(1);
    bench
        .dispatcher
        .room_created("call", Owner::Nobody, Vec::new(), bench.now);
    bench
        .dispatcher
        .launch(&room("call"), JobType::JtRoom, None, None, bench.now);
    bench.settle();
    assert!(bench.dispatcher.is_held("call") && !bench.told_anybody());
    bench.dispatcher.open_room(&room("call"), bench.now);
    bench.settle();
    assert_eq!(bench.accept(worker).0.room.unwrap().name, "call");
}

#[test]
fn a_worker_that_does_not_register_is_disconnected_and_so_is_one_that_cannot() {
    let mut bench = Bench::new();
    let (silent, strange) = (
        bench.connect(1, Principal::Operator),
        bench.connect(2, Principal::Operator),
    );
    let mut request = registration("", JobType::JtRoom);
    request.r#type = 9;
    bench.say(strange, Said::Register(request));
    assert_eq!(bench.closed, [strange]);
    bench.lose(strange);
    bench.pass(REGISTRATION);
    assert_eq!(bench.closed, [strange, silent]);
    assert!(bench.dispatcher.workers.is_empty());
}

#[test]
fn what_workers_and_jobs_take_is_counted_and_given_back() {
    let mut bench = Bench::new();
    let most = limits::AGENT_WORKERS as u64;
    for number in 0..most {
        bench.worker(number);
    }
    let credentials = WorkerCredentials {
        principal: Principal::Operator,
        party: Party::Operator,
        api_key: "key".to_owned(),
    };
    let full = bench
        .dispatcher
        .connected(WorkerId(most), credentials, bench.now);
    assert_eq!(full.unwrap_err().kind, quotas::Kind::AgentWorkers);
    for number in 0..most {
        bench.lose(WorkerId(number));
    }
    assert!(bench.dispatcher.worker_places.is_empty());
    let worker = bench.worker(1);
    let all = [""; limits::DISPATCHES_PER_ROOM];
    bench.open("kitchen", Owner::Nobody, &all);
    assert_eq!(bench.states().len(), all.len());
    let more = bench
        .dispatcher
        .create_dispatch(&room("kitchen"), asked(""), bench.now);
    assert!(matches!(
        more.unwrap_err(),
        OperationError::FailedPrecondition(_)
    ));
    bench.lose(worker);
    bench.dispatcher.room_finished("kitchen", bench.now);
    assert!(bench.dispatcher.jobs.is_empty() && bench.dispatcher.sids.is_empty());
    assert!(bench.dispatcher.job_places.is_empty());
    bench.pass(WAITING);
    assert!(bench.dispatcher.opened.is_empty());
}

#[test]
fn an_answer_that_the_room_would_refuse_is_a_refusal() {
    let mut bench = Bench::new();
    let worker = bench.worker(1);
    bench.open("kitchen", Owner::Nobody, &[]);
    let job = bench.offered(worker).job.unwrap();
    let answer = proto::AvailabilityResponse {
        job_id: job.id,
        available: true,
        participant_metadata: "x".repeat(limits::AGENT_TEXT_BYTES + 1),
        ..Default::default()
    };
    bench.say(worker, Said::Availability(answer));
    assert_eq!(bench.states(), ["waiting"]);
}
