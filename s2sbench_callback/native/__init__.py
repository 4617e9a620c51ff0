"""Speech LMs and speech tokenizers whose published code does not run on the installed ``transformers``, built anew."""
