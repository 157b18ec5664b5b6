"""What the tests compare with: literal transcriptions, small problems, and how both are run."""
