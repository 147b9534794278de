"""The timeline: tracks of a job at any resolution, and what is asked about them."""
