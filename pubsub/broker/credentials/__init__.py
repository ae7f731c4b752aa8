"""The proofs of clients and their verification: tokens, passwords, queue keys, CURVE keys."""
