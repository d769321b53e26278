"""asks of a running job, pinned checkpoints"""

import sqlalchemy as sa
from alembic import op

revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None

COUNTERS = ('sample_asked', 'sample_answered', 'checkpoint_asked', 'checkpoint_answered')


def upgrade() -> None:
    for name in COUNTERS:
        op.add_column('job', sa.Column(name, sa.Integer(), nullable=False, server_default='0'))
    op.add_column('file', sa.Column('pinned', sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column('file', 'pinned')
    for name in reversed(COUNTERS):
        op.drop_column('job', name)
