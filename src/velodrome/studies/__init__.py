"""Published studies of distributed training as race files, with their published figures beside ours."""
