"""What users build with `dspyer.extend`, by its public names alone."""
