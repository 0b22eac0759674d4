"""``zc_doctor``: looks at a vehicle before it drives, changes nothing, and says what to do."""
