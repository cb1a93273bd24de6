"""The member's store on RocksDB, and the certifier's state in it."""
