"""The embedded world: stories, their speech, a small speech tokenizer, a small speech LM and its training."""
