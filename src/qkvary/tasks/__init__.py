"""What is asked, and how is it scored? One file per task."""
