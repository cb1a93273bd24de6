//! A client of a group: it asks one member after the other, and does what their errors advise.
//!
//! Nothing here knows the reasons for which a call can fail. What to do next stands in
//! `ErrorDetail.advice`, and whether a commit may have happened in `ErrorDetail.without_effect`.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prost::Message;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::contract::certification_service_client::CertificationServiceClient;
use crate::contract::store_service_client::StoreServiceClient;
use crate::contract::{
    Changes, CommitRequest, CommitResponse, Conflict, ErrorDetail, GetOutcomeRequest, GetRequest,
    OpenSnapshotRequest, Outcome, RetryAdvice, Verdict,
};

const CALL: Duration = Duration::from_secs(10);
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(250);

static TRANSACTIONS: AtomicU64 = AtomicU64::new(0);

/// A `google.rpc.Status`, as gRPC has it in the trailer `grpc-status-details-bin`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// Returns a detail of an error by the name of its message; none: gRPC itself failed, not a member.
fn detail<T: Message + Default>(status: &Status, name: &str) -> Option<T> {
    let details = RpcStatus::decode(status.details()).ok()?.details;
    let found = details.iter().find(|each| each.type_url.ends_with(name))?;
    T::decode(found.value.as_slice()).ok()
}

/// Returns why a call failed and what to do next. A call that no member has answered may have had
/// an effect, and may be sent to another member under the same `transaction_id`.
pub fn error_detail(status: &Status) -> ErrorDetail {
    let gone = matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown
    );
    detail(status, "/groupcert.v1.ErrorDetail").unwrap_or_else(|| ErrorDetail {
        advice: if gone {
            RetryAdvice::OtherMember
        } else {
            RetryAdvice::Unspecified
        }
        .into(),
        ..Default::default()
    })
}

/// Returns the row that a transaction lost on, and who was first; none: it did not lose.
pub fn conflict(status: &Status) -> Option<Conflict> {
    detail(status, "/groupcert.v1.Conflict")
}

/// Returns the error of a commit that may have happened. It advises nothing: nobody repeats it.
fn unknown(request: &CommitRequest, cause: Status) -> Status {
    let id = String::from_utf8_lossy(&request.transaction_id);
    Status::internal(format!("outcome of {id} is unknown: {cause}"))
}

/// A transaction that has begun: it reads one snapshot, and sends what it writes at its end.
pub struct Transaction {
    id: Vec<u8>,
    member: usize,
    snapshot_id: u64,
    version: u64,
    writes: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Transaction {
    pub fn put(&mut self, key: &str, value: impl ToString) {
        self.writes.insert(key.into(), value.to_string().into());
    }
}

/// The members of a group, of which one is asked first.
#[derive(Clone)]
pub struct Group {
    addresses: Vec<String>,
    channels: HashMap<String, Channel>,
    current: usize,
    /// What its next snapshot has at least.
    pub version: u64,
    /// How often each advice was taken.
    pub advised: BTreeMap<&'static str, u32>,
}

impl Group {
    /// Connects when it has to; `addresses` are of `host:port`.
    pub fn new(addresses: &[String]) -> Self {
        let (addresses, channels) = (addresses.to_vec(), HashMap::new());
        Self {
            addresses,
            channels,
            current: 0,
            version: 0,
            advised: BTreeMap::new(),
        }
    }

    /// Returns another client, with connections in common, that asks another member first.
    pub fn client_of(&self, number: usize) -> Self {
        let current = (self.current + number) % self.addresses.len();
        Self {
            current,
            advised: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// Begins a transaction whose snapshot has all that this client has seen.
    pub async fn begin(&mut self) -> Result<Transaction, Status> {
        let request = OpenSnapshotRequest {
            version_min: self.version,
            ..Default::default()
        };
        let opened = self
            .store(self.current)?
            .open_snapshot(request)
            .await?
            .into_inner();
        let number = TRANSACTIONS.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(Transaction {
            id: format!("{:x}-{:x}", now.as_nanos(), number).into_bytes(),
            member: self.current,
            snapshot_id: opened.snapshot_id,
            version: opened.version,
            writes: BTreeMap::new(),
        })
    }

    /// Returns the number that a row has in the transaction's snapshot; 0: there is no such row.
    pub async fn get(&mut self, transaction: &Transaction, key: &str) -> Result<i64, Status> {
        let request = GetRequest {
            snapshot_id: transaction.snapshot_id,
            keys: vec![key.into()],
        };
        let rows = self
            .store(transaction.member)?
            .get(request)
            .await?
            .into_inner()
            .rows;
        let value = rows
            .into_iter()
            .next()
            .and_then(|row| row.value)
            .unwrap_or_default();
        Ok(String::from_utf8_lossy(&value).parse().unwrap_or(0))
    }

    /// Commits, at another member under the same id if one does not answer.
    pub async fn commit(&mut self, transaction: Transaction) -> Result<CommitResponse, Status> {
        let (put_keys, put_values) = transaction.writes.into_iter().unzip();
        let mut request = CommitRequest {
            transaction_id: transaction.id,
            snapshot_id: transaction.snapshot_id,
            snapshot_version: transaction.version,
            changes: Some(Changes {
                put_keys,
                put_values,
                ..Default::default()
            }),
            first_attempt: true,
            ..Default::default()
        };
        let ends = Instant::now() + 3 * CALL;
        let mut perhaps_ordered = false;
        let mut member = transaction.member;
        let mut pause = PAUSE_FIRST;
        loop {
            let failure = match self.store(member)?.commit(request.clone()).await {
                Ok(committed) => return Ok(self.seen(committed.into_inner())),
                Err(failure) => failure,
            };
            let detail = self.note(&failure);
            perhaps_ordered |= !detail.without_effect;
            request.first_attempt = !perhaps_ordered;
            match detail.advice() {
                RetryAdvice::SameRequest | RetryAdvice::OtherMember if Instant::now() < ends => {
                    member = self.move_on(&detail.address);
                    request.snapshot_id = 0; // Of the first member; snapshot_version stands for it.
                    self.wait(&mut pause).await;
                }
                // The repetition may have lost to the transaction itself.
                RetryAdvice::Never | RetryAdvice::BeginAgain if perhaps_ordered => {
                    return self.recall(member, request, failure).await;
                }
                _ if perhaps_ordered => return Err(unknown(&request, failure)),
                _ => return Err(failure),
            }
        }
    }

    /// Runs `work` until it has committed, each time on a new snapshot. Fails if no retry helps.
    pub async fn run<Work>(&mut self, work: Work) -> Result<CommitResponse, Status>
    where
        Work: AsyncFn(&mut Group, &mut Transaction) -> Result<(), Status>,
    {
        let ends = Instant::now() + 3 * CALL;
        let mut pause = PAUSE_FIRST;
        loop {
            let failure = match self.attempt(&work).await {
                Ok(committed) => return Ok(committed),
                Err(failure) if Instant::now() > ends => return Err(failure),
                Err(failure) => failure,
            };
            let detail = error_detail(&failure);
            match detail.advice() {
                RetryAdvice::BeginAgain | RetryAdvice::SameRequest => {}
                RetryAdvice::OtherMember => drop(self.move_on(&detail.address)),
                _ => return Err(failure),
            }
            self.wait(&mut pause).await;
        }
    }

    async fn attempt<Work>(&mut self, work: &Work) -> Result<CommitResponse, Status>
    where
        Work: AsyncFn(&mut Group, &mut Transaction) -> Result<(), Status>,
    {
        let begun = self.begin().await;
        let mut transaction = begun.inspect_err(|failure| drop(self.note(failure)))?;
        work(self, &mut transaction).await?;
        self.commit(transaction).await
    }

    /// Asks what became of a transaction whose repetition was answered with a failure.
    async fn recall(
        &mut self,
        member: usize,
        request: CommitRequest,
        failure: Status,
    ) -> Result<CommitResponse, Status> {
        let mut client = CertificationServiceClient::new(self.channel(member)?);
        let transaction_id = request.transaction_id.clone();
        let answer = client
            .get_outcome(GetOutcomeRequest { transaction_id })
            .await;
        let found = answer
            .map_err(|cause| unknown(&request, cause))?
            .into_inner();
        match found.outcome {
            Some(outcome) if outcome.verdict() == Verdict::Certified => {
                let Outcome {
                    gtid,
                    version,
                    log_sequence,
                    ..
                } = outcome;
                Ok(self.seen(CommitResponse {
                    gtid,
                    version,
                    log_sequence,
                }))
            }
            _ if found.forgotten_version > request.snapshot_version => {
                Err(unknown(&request, failure))
            }
            _ => Err(failure),
        }
    }

    fn seen(&mut self, committed: CommitResponse) -> CommitResponse {
        self.version = self.version.max(committed.version);
        committed
    }

    /// Counts an error's advice; the next snapshot has the transaction that this one lost to.
    fn note(&mut self, failure: &Status) -> ErrorDetail {
        let detail = error_detail(failure);
        *self
            .advised
            .entry(detail.advice().as_str_name())
            .or_default() += 1;
        let winner = conflict(failure).map_or(0, |conflict| conflict.winner_version);
        self.version = self.version.max(winner);
        detail
    }

    /// Asks another member from now on: the one at the address, which may be new, or the next one.
    fn move_on(&mut self, address: &str) -> usize {
        self.current = (self.current + 1) % self.addresses.len();
        if !address.is_empty() {
            let known = self.addresses.iter().position(|each| each == address);
            self.current = known.unwrap_or(self.addresses.len());
            if known.is_none() {
                self.addresses.push(address.into());
            }
        }
        self.current
    }

    async fn wait(&self, pause: &mut Duration) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        tokio::time::sleep(pause.mul_f64(f64::from(now.subsec_micros() % 1_000) / 1e3)).await;
        *pause = (*pause * 2).min(PAUSE_MAX);
    }

    fn store(&mut self, member: usize) -> Result<StoreServiceClient<Channel>, Status> {
        Ok(StoreServiceClient::new(self.channel(member)?))
    }

    fn channel(&mut self, member: usize) -> Result<Channel, Status> {
        let address = &self.addresses[member];
        if let Some(channel) = self.channels.get(address) {
            return Ok(channel.clone());
        }
        let endpoint = Channel::from_shared(format!("http://{address}"))
            .map_err(|problem| Status::invalid_argument(problem.to_string()))?;
        let channel = endpoint.connect_timeout(CALL).timeout(CALL).connect_lazy();
        self.channels.insert(address.clone(), channel.clone());
        Ok(channel)
    }
}
