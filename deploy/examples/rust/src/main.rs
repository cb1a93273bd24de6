//! Moves money between two accounts from several clients at once: `transfer ADDRESS...`.
//!
//! First it makes two transactions lose and win on purpose and prints the conflict; then clients at
//! all members transfer at the same time, and nothing is lost.

mod client;

/// The stubs of `proto/groupcert/v1`.
mod contract {
    tonic::include_proto!("groupcert.v1");
}

use client::{Group, conflict, error_detail};
use tokio::task::LocalSet;
use tonic::Status;

const ACCOUNTS: [&str; 2] = ["account/1", "account/2"];
const OPENING: i64 = 100;
const CLIENTS: usize = 4;
const TRANSFERS: usize = 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addresses: Vec<String> = std::env::args().skip(1).collect();
    if addresses.is_empty() {
        return Err("usage: transfer ADDRESS..., each as 127.0.0.1:7101".into());
    }
    let mut group = Group::new(&addresses);
    group
        .run(async |_, transaction| {
            ACCOUNTS
                .iter()
                .for_each(|account| transaction.put(account, OPENING));
            Ok(())
        })
        .await?;
    lose(&mut group).await?;

    let clients = LocalSet::new();
    let transfers: Vec<_> = (0..CLIENTS)
        .map(|number| clients.spawn_local(transfer(group.client_of(number), number)))
        .collect();
    clients.await;
    for transferred in transfers {
        let client = transferred.await??;
        group.version = group.version.max(client.version);
        for (advice, count) in client.advised {
            *group.advised.entry(advice).or_default() += count;
        }
    }
    for (advice, count) in &group.advised {
        println!("{advice} {count}");
    }

    let transaction = group.begin().await?;
    let mut sum = 0;
    for account in ACCOUNTS {
        let balance = group.get(&transaction, account).await?;
        println!("{account} {balance}");
        sum += balance;
    }
    assert_eq!(sum, 2 * OPENING, "money was made or lost");
    Ok(())
}

/// Has two transactions write the same row on snapshots of the same version: the first one wins.
async fn lose(group: &mut Group) -> Result<(), Status> {
    let (mut winner, mut loser) = (group.begin().await?, group.begin().await?);
    winner.put(ACCOUNTS[0], OPENING);
    loser.put(ACCOUNTS[0], 0);
    let won = group.commit(winner).await?;
    let Err(failure) = group.commit(loser).await else {
        return Err(Status::internal("both have won"));
    };
    let detail = error_detail(&failure);
    let lost = conflict(&failure).unwrap_or_default();
    println!(
        "{} {}",
        detail.reason().as_str_name(),
        detail.advice().as_str_name()
    );
    println!(
        "{} lost to {} of {}",
        lost.key, lost.winner_gtid, lost.winner_member
    );
    assert_eq!(lost.winner_gtid, won.gtid);
    Ok(())
}

/// Moves 1 from one account to the other, again and again; every other client moves it back.
async fn transfer(mut client: Group, number: usize) -> Result<Group, Status> {
    let (from, to) = (ACCOUNTS[number % 2], ACCOUNTS[(number + 1) % 2]);
    for _ in 0..TRANSFERS {
        let move_one = async |group: &mut Group, transaction: &mut client::Transaction| {
            let left = group.get(transaction, from).await? - 1;
            let more = group.get(transaction, to).await? + 1;
            transaction.put(from, left);
            transaction.put(to, more);
            Ok(())
        };
        client.run(move_one).await?;
    }
    Ok(client)
}
