"""The PetS benchmark: many fine-tuned tasks on one frozen encoder, compared with one model per task."""
