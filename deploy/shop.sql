-- The tables of compose.postgresql.yaml, at each server the same: put your own in their place.
CREATE TABLE IF NOT EXISTS accounts (id int PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE IF NOT EXISTS transfers (
    id uuid PRIMARY KEY, source int NOT NULL, target int NOT NULL, amount int NOT NULL
);
