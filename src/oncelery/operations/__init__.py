"""What a person does with a ledger: look at jobs, cancel them, revive dead letters, see who was answered what."""
