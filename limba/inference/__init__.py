"""A trained model in use: opened, generating and scoring text.

Floor 4: imports floors 0 to 3.
"""
