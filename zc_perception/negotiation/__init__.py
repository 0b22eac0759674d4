"""
Which participants can agree on what, before the first frame.

Constraints come in, one buffer setting comes out. Read :mod:`~zc_perception.negotiation.session`
first: how a camera and its consumers agree. :mod:`~zc_perception.negotiation.agreement` chooses.
:mod:`~zc_perception.negotiation.constraints` is what each of them asks for,
:mod:`~zc_perception.negotiation.settings` is the result.
"""
