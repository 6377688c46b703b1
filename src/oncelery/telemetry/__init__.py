"""What happens, as log lines and as figures. Subscribers of `oncelery.events`, nothing else."""
