"""PetS's comparison: many fine-tuned tasks on one frozen encoder, and one model for each."""
