"""What a job trains on, seen without torch: files and captions, their order in an epoch, what a plan says of them."""
